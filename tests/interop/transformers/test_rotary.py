"""Relations on rotary positions: label vectors meet the query before its turn, so only labels and distances count."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers.models.llama import modeling_llama  # noqa: E402

import relgraph as rg  # noqa: E402
from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import by_name, rotary  # noqa: E402

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 30}
SIZES |= {"max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GQA = SIZES | {"num_key_value_heads": 2}
HEADS = GQA | {"head_dim": 8}
LLAMA4 = HEADS | {"num_local_experts": 2, "no_rope_layers": [1, 0], "attention_chunk_size": 64, "use_qk_norm": True}
LLAMA4 |= {
    "intermediate_size_mlp": 16,
    "moe_layers": [],
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}


def scaled(kind, **more):
    positions = {"rope_type": kind, "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 512} | more
    return HEADS | {"rope_parameters": positions}


FAMILIES = {
    "Llama": HEADS,
    "Llama linear": scaled("linear"),
    "Llama dynamic": scaled("dynamic"),
    "Llama yarn": scaled("yarn"),
    "Llama llama3": scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
    "Llama longrope": scaled("longrope", short_factor=[1.0, 2.0, 3.0, 4.0], long_factor=[2.0] * 4),
    "Qwen2": GQA,
    "Qwen3": HEADS,
    "Mistral": HEADS,
    "Ministral3": HEADS,
    "Gemma": HEADS,
    "Gemma2": HEADS | {"attn_logit_softcapping": 2.0, "sliding_window": 6},
    "Gemma3Text": HEADS | {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "ModernBert": SIZES | {"global_attn_every_n_layers": 2, "local_attention": 8},
    "Esm": SIZES | {"position_embedding_type": "rotary", "mask_token_id": 3, "emb_layer_norm_before": True},
    "EuroBert": GQA,
    "GPTNeoX": SIZES | HALF,
    "Phi": SIZES | HALF,
    "Phi3": GQA | HALF,
    "StableLm": GQA | HALF,
    "Persimmon": SIZES | HALF,
    "Glm": HEADS | HALF,
    "Glm4": HEADS | HALF,
    "Cohere": GQA,
    "Cohere2": HEADS | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    "Olmo2": GQA,
    "SmolLM3": GQA | {"no_rope_layers": [1, 0]},
    "Exaone4": HEADS | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    "Ernie4_5": HEADS,
    "GptOss": HEADS
    | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 6, "experts_implementation": "eager"},
    "GPTJ": {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4, "n_positions": 512, "vocab_size": 30},
    "CodeGen": {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4, "n_positions": 512, "vocab_size": 30},
    "Llama4Text": LLAMA4,
}
"""Options of a small model of each family, by its name and a note."""


def made(name, **options):
    kind = name.split()[0]
    config = getattr(transformers, f"{kind}Config")(**FAMILIES[name] | options)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def related(name, tables=("key", "value", "bias"), per_head=True, **options):
    model = made(name, **options)
    report = ours.add_relations(model, rg.ClippedDistance(3), tables=tables, per_head=per_head)
    for module in model.modules():
        if isinstance(module, ours.Relation):
            for rows in module.parameters():
                torch.nn.init.normal_(rows)
    return model, report


def states(model, shift=0, length=11):
    tokens = torch.randint(3, 30, (2, length), generator=torch.Generator().manual_seed(3))
    positions = shift + torch.arange(length).expand(2, -1)
    return model(input_ids=tokens, position_ids=positions).last_hidden_state


@pytest.mark.parametrize("name", FAMILIES)
def test_positions_may_shift(name, monkeypatch):
    """Plain models do not move either, where their angles are in float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    model, report = related(name)
    assert len(report.patched) == 2
    assert not report.unpatched
    torch.testing.assert_close(states(model, 100), states(model), atol=1e-8, rtol=0.0)


@pytest.mark.parametrize("name", ["Llama yarn", "StableLm", "Glm", "Cohere"])
def test_scores_are_those_of_a_loop(name):
    """In float32 where the model turns in it; yarn stretches queries and keys, but not the query that labels meet."""
    model, _ = related(name)
    module, states = model.layers[0].self_attn, torch.randn(2, 7, 32, dtype=torch.float64, requires_grad=True)
    waves = model.rotary_emb(states, torch.arange(5, 12).expand(2, -1))
    found, _ = module(states, position_embeddings=waves, attention_mask=None)
    q, k, v = (
        layer(states).unflatten(-1, (-1, 8)).transpose(1, 2) for layer in (module.q_proj, module.k_proj, module.v_proj)
    )
    part = waves[0].shape[-1]
    turn = inspect.getmodule(type(module)).apply_rotary_pos_emb
    turned = [
        torch.cat([x, y[..., part:]], -1)
        for x, y in zip(turn(q[..., :part], k[..., :part], *waves), (q, k), strict=True)
    ]
    tables, rows = module.relation.tables(), []
    for i in range(7):
        scores, values = [], []
        for j in range(i + 1):
            label = max(j - i, -3) + 3
            score = (turned[0][:, :, i] * turned[1][:, :, j].repeat_interleave(q.shape[1] // k.shape[1], 1)).sum(-1)
            score = score + (q[:, :, i] * tables["key_table"][:, label]).sum(-1)
            scores.append(score / math.sqrt(8) + tables["bias_table"][:, label])
            values.append(v[:, :, j].repeat_interleave(q.shape[1] // k.shape[1], 1) + tables["value_table"][:, label])
        weights = torch.stack(scores).softmax(0)[..., None]
        rows.append((weights * torch.stack(values)).sum(0).flatten(1))
    wanted = module.o_proj(torch.stack(rows, 1))
    close = {"atol": 1e-5, "rtol": 1e-5} if name == "Cohere" else {}
    torch.testing.assert_close(found, wanted, **close)
    weight, leaves = torch.randn_like(found), [states, module.q_proj.weight, *module.relation.parameters()]
    for one, two in zip(*(torch.autograd.grad((x * weight).sum(), leaves) for x in (found, wanted)), strict=True):
        torch.testing.assert_close(one, two, **close)


def test_layers_without_positions_take_a_query_table_and_the_others_say_why_not():
    _, report = related("SmolLM3", tables=("query", "value"))
    assert [one.name for one in report.patched] == ["layers.1.self_attn"]
    assert [one.why for one in report.unpatched] == [
        "its rotary positions turn keys before a query table could meet them"
    ]
    with pytest.raises(
        NotImplementedError, match="Llama.* with: unchanged: .*turn keys before a query table could meet"
    ):
        related("Llama", tables=("key", "query"))


FAMILIES_REFUSED = {
    "HunYuanDenseV1": HEADS,
    "RecurrentGemma": GQA | {"block_types": ["attention"], "lru_width": 32},
    "DeepseekV3": SIZES | {"qk_rope_head_dim": 4, "n_routed_experts": 2, "n_group": 1, "topk_group": 1},
}


@pytest.mark.parametrize("name", FAMILIES_REFUSED)
def test_a_turn_that_cannot_be_undone_is_reported(name, monkeypatch):
    """Because of a norm with weights, of positions that a module makes itself, and of the last elements that turn."""
    monkeypatch.setitem(FAMILIES, name, FAMILIES_REFUSED[name])
    with pytest.raises(
        NotImplementedError, match="with: unchanged: .*: relgraph cannot undo its rotary positions, so no"
    ):
        related(name)
    if name.startswith("HunYuan"):
        assert len(related(name, tables=("value", "bias"))[1].patched) == 2


def test_values_that_turn_get_no_tables(monkeypatch):
    options = {"n_routed_experts": 2, "q_lora_rank": 8, "qk_rope_head_dim": 4, "o_groups": 2, "o_lora_rank": 8}
    monkeypatch.setitem(FAMILIES, "DeepseekV4", HEADS | options | {"moe_intermediate_size": 8, "num_hash_layers": 0})
    with pytest.raises(NotImplementedError, match="with: unchanged: .*: its rotary positions turn values too"):
        related("DeepseekV4", tables=("value",))


def test_relations_of_ones_own():
    ours.register()
    added, _ = related("Llama", tables=("key", "value"), per_head=False)
    model = made("Llama", attn_implementation="relgraph")
    relations = [ours.Relation(rg.ClippedDistance(3), 8).double() for _ in model.layers]
    for layer, own, one in zip(model.layers, relations, added.layers, strict=True):
        own.load_state_dict(one.self_attn.relation.state_dict())
        layer.self_attn.relation = own
    message = r"relation must get the angles of .* LlamaAttention, got none: place it by relation\.attach\(module\)"
    with pytest.raises(ValueError, match=message):
        states(model)
    for layer, own in zip(model.layers, relations, strict=True):
        own.attach(layer.self_attn)
    torch.testing.assert_close(states(model), states(added))
    with pytest.raises(
        NotImplementedError, match=r"module must be one for tables of \['query'\], got LlamaAttention: its"
    ):
        ours.Relation(rg.ClippedDistance(3), 8, kinds=("query",)).attach(model.layers[0].self_attn)
    with pytest.raises(TypeError, match="module must be a torch.nn.Module, got str"):
        relations[0].attach("layers.0")


def test_angles_of_other_rows_are_refused():
    """DINOv3 turns patches but not the tokens before them."""
    model = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**SIZES, image_size=8, patch_size=4))
    with pytest.raises(NotImplementedError, match=r"DINOv3ViTAttention\): relgraph cannot undo its rotary positions"):
        ours.add_relations(model, rg.ClippedDistance(2))
    turn, angles = rotary.Turn("half", "twice"), torch.zeros(4, 8)
    message = r"position_embeddings must have shape \[B, 5, ...\], with one row per query, where .* got \[4, 8\]"
    with pytest.raises(NotImplementedError, match=message):
        turn.undone(torch.zeros(1, 2, 5, 8), (angles, angles))


class TurnsByAnotherName(modeling_llama.LlamaAttention):
    """A forward whose turn has a name that says nothing."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, cache=None, **more):
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        projections = self.q_proj, self.k_proj, self.v_proj
        query, key, value = (project(hidden_states).view(heads).transpose(1, 2) for project in projections)
        cos, sin = position_embeddings
        query, key = moved(query, key, cos, sin)
        attend = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        output, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, **more)
        return self.o_proj(output.flatten(2)), weights


moved = modeling_llama.apply_rotary_pos_emb


def test_a_turn_by_another_name_is_unknown():
    model = made("Llama")
    for layer in model.layers:
        layer.self_attn.__class__ = TurnsByAnotherName
    with pytest.raises(NotImplementedError, match="relgraph cannot undo its rotary positions"):
        ours.add_relations(model, rg.ClippedDistance(2))
    assert len(ours.add_relations(model, rg.ClippedDistance(2), tables=("value", "bias")).patched) == len(model.layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "ModernBert", "Glm"])
def test_one_graph_without_breaks(name):
    model = related(name)[0].float()
    torch.compiler.reset()
    found = states(torch.compile(model, backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(found, states(model), atol=1e-5, rtol=1e-5)
    torch.compiler.reset()


LIKE_ROTARY = {"Glm5NextTextAttention", "KimiLinearAttention"}
"""Classes whose forward has such names, but turns nothing."""

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2}
SMALL |= {"n_embd": 64, "n_head": 4, "rotary_dim": 8}


def classes():
    """Each class of transformers whose forward looks up its attention and takes keyword arguments, with its module."""
    for path in sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        if "ALL_ATTENTION_FUNCTIONS" in path.read_text("utf-8"):
            file = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
            for kind in vars(file).values():
                if inspect.isclass(kind) and kind.__module__ == file.__name__ and issubclass(kind, torch.nn.Module):
                    given = inspect.signature(inspect.unwrap(kind.forward)).parameters.values()
                    if by_name.through_interface(kind) and any(one.kind is one.VAR_KEYWORD for one in given):
                        yield kind, file


def module_of(kind, file):
    """A small module of a class, of one of the configurations of its file; None if none fits."""
    for config in (one for name, one in vars(file).items() if name.endswith("Config") and inspect.isclass(one)):
        fields = {*getattr(config, "__dataclass_fields__", ()), *inspect.signature(config).parameters}
        for options in (SMALL, {}):
            for layer in ({}, {"layer_idx": 0}):
                try:
                    made = config(**{name: size for name, size in options.items() if name in fields})
                    made._attn_implementation = "eager"
                    return kind(made, **layer).eval()
                except Exception:  # a configuration of another class
                    continue
    return None


def query_of(module, angles, monkeypatch):
    """What a module hands to its attention function, which stops its forward."""

    def stop(_, query, *__, **___):
        raise StopIteration("here", query)

    monkeypatch.setattr(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS, "get_interface", lambda *_: stop)
    size = next(one.in_features for one in module.modules() if hasattr(one, "in_features"))
    states = torch.linspace(-1, 1, 5 * size).sin().view(1, 5, size)
    known = {"hidden_states": states, "position_embeddings": angles, "position_ids": torch.arange(5)[None]}
    given = {}
    for name, one in inspect.signature(inspect.unwrap(type(module).forward)).parameters.items():
        if name in known or (one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD):
            given[name] = known.get(name) if name != "self" else module
    with pytest.raises(StopIteration, match="here") as caught:
        inspect.unwrap(type(module).forward)(**given)
    return caught.value.args[1]


@pytest.mark.slow
def test_every_class_of_transformers(monkeypatch):
    """Of each that can be made here, the turn is undone or it is refused; and no other class looks like rotary."""
    undone, wrong = 0, []
    for kind, file in classes():
        code = inspect.unwrap(kind.forward).__code__
        if not rotary.is_rotary(object.__new__(kind)):
            names = {name for name in code.co_names + code.co_varnames if re.search("rot|rope|freq|^cos$", name)}
            assert not names or kind.__name__ in LIKE_ROTARY, kind
            continue
        module = module_of(kind, file)
        turn = None if module is None else rotary.turn_of(module)
        if not isinstance(turn, rotary.Turn) or "hidden_states" not in code.co_varnames:
            continue
        for size in (16, 8):
            angles = torch.linspace(0, 3, 5 * size // 2).view(1, 5, -1)
            spread = {"twice": torch.cat([angles] * 2, -1), "twins": angles.repeat_interleave(2, -1), "once": angles}
            cos, sin = spread[turn.form].cos(), spread[turn.form].sin()
            waves = [(cos, sin), (torch.ones_like(cos), torch.zeros_like(sin))]
            waves = [pair[:: -1 if turn.sine_first else 1] for pair in waves]
            try:
                turned, plain = (query_of(module, pair, monkeypatch) for pair in waves)
            except (Exception, pytest.fail.Exception):  # another size, or more arguments
                continue
            undone += 1
            assert not torch.allclose(turned, plain, atol=1e-3), kind
            if not torch.allclose(turn.undone(turned, waves[0]), plain, atol=1e-4):
                wrong.append(kind.__name__)
            break
    assert not wrong
    assert undone > 130, undone
