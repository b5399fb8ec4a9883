"""Compare Hugging Face models before and after patching: time forward and backward, and peak memory.

    python -m docs.benchmarks.patched                        # every family; --json FILE keeps the figures
    python -m docs.benchmarks.patched --only 'T5|VITS'       # some models
    python -m docs.benchmarks.patched --quick                # a smoke run: its figures mean nothing
    python -m docs.benchmarks.patched --whole --no-peaks     # whole models of base size at usual lengths
    python -m docs.benchmarks.patched --hour                 # a layer of Parakeet over one hour of audio: MiB, seconds

Needs transformers (``pip install 'transformers>=5.24,<6'``); GLiNER is a row where ``gliner`` is installed. Weights are
random, which does not change the time. Each model is made once for each of its attention implementations in
transformers, and once more and patched, with the same weights. Outputs are compared before the timing. Ways run in turn
in one process; ratios are taken within a round. A separate process measures each peak, above what it holds before the
call.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import relgraph as rg
from docs.benchmarks.about import publish
from docs.benchmarks.measure import Clock, Rows, fresh_peak, in_turn, peak_mib, quartiles, ratio
from docs.benchmarks.ways import Wrong

PATCHED = "patched"
HOUR = 45_000
"""The frames of Parakeet in one hour of audio."""

ROUNDING = 1e-4
"""The largest relative difference of outputs, by norm: float32 over several layers."""


class Case(NamedTuple):
    """One model at one length.

    Attributes:
        name: the model.
        length: tokens, frames or positions, as text for the table.
        make: makes the model with an attention implementation of transformers.
        inputs: makes the arguments of the call.
        ways: the attention implementations of transformers.
        forward_only: whether backward of transformers would need more memory than a machine has.
        rounds: number of counted rounds.
    """

    name: str
    length: str
    make: Callable[[str], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    ways: tuple[str, ...] = ("eager", "sdpa")
    forward_only: bool = False
    rounds: int = 7


def cases(quick: bool) -> list[Case]:
    """All models, at the reported lengths or at toy lengths."""
    t5 = [512, 2048, 8192] if not quick else [40]
    deberta = [512, 2048] if not quick else [40]
    speech = [500, 1500, 3000] if not quick else [40]
    vocabulary = 100 if quick else 32_128
    made = [Case("T5-small encoder", str(n), partial(_t5, vocabulary), lambda n=n: {"input_ids": torch.full((1, n), 5)},
                 forward_only=n > 4096, rounds=3 if n > 4096 else 7) for n in t5]  # fmt: skip
    made += [Case("DeBERTa-v3-base layer", str(n), _deberta, lambda n=n: {
        "hidden_states": _states(n, 768), "attention_mask": torch.ones(1, n, dtype=torch.long)}, ("eager",),
        rounds=3 if n > 1000 else 7) for n in deberta]  # fmt: skip
    n = 40 if quick else 1500
    made.append(Case("Parakeet attention", str(n), partial(_parakeet, "Attention"), lambda n=n: _with_sines(n)))
    made += [Case("Wav2Vec2-BERT layer", str(n), _wav2vec2_bert, lambda n=n: {"hidden_states": _states(n, 1024)},
                  ("eager",), rounds=3 if n > 1000 else 7) for n in speech]  # fmt: skip
    n = 40 if quick else 1000
    made.append(Case("VITS text encoder", str(n), _vits, lambda: {
        "input_ids": torch.full((1, n), 5), "padding_mask": torch.ones(1, n, 1)}, ("eager",)))  # fmt: skip
    side, windows = (6, 2) if quick else (14, 25)
    made.append(Case("SAM window attention", f"{windows} × {side} × {side}", lambda way: _sam(way, side), lambda: {
        "hidden_states": _states(side * side, 768, windows).unflatten(1, (side, side))}))  # fmt: skip
    all_of_it = 8 if quick else 64
    made.append(Case("SAM global attention", f"{all_of_it} × {all_of_it}", lambda way: _sam(way, all_of_it), lambda: {
        "hidden_states": _states(all_of_it**2, 768).unflatten(1, (all_of_it, all_of_it))}, rounds=3))  # fmt: skip
    n = 60 if quick else 2048
    made += [Case(name, str(n), partial(_inkling, kind), lambda window=window: {
        "hidden_states": _states(n, 1024), "attention_mask": _near(n, window)})
        for name, kind, window in (("Inkling sliding attention", "hybrid_sliding", 512),
                                   ("Inkling full attention", "hybrid", n))]  # fmt: skip
    return made + other_families(quick)


def other_families(quick: bool) -> list[Case]:
    """One or two layers of each other family, with its published widths, at a length that its users run."""
    few = {"vocab_size": 100, "num_hidden_layers": 1 if quick else 2}
    t5 = {"vocab_size": 100, "num_layers": few["num_hidden_layers"], "dropout_rate": 0.0}
    long = t5 | {"d_model": 768, "d_ff": 2048, "num_heads": 12, "encoder_attention_type": "local"}
    xlnet = {"vocab_size": 100, "d_model": 768, "n_head": 12, "d_inner": 3072, "n_layer": few["num_hidden_layers"]}
    both, eager, n = ("eager", "sdpa"), ("eager",), 40 if quick else 500
    text, side = (40, 32) if quick else (512, 224)  # tokens, and pixels of an image in patches of 16
    patches = (side // 16) ** 2
    made = [
        Case("MPNet-base, two layers", str(min(text, 384)), partial(_model, "MPNetModel", "MPNetConfig", few),
             lambda: _tokens(min(text, 384)), eager),
        Case("LayoutLMv3-base, two layers", f"{text} + {patches + 1}",
             partial(_model, "LayoutLMv3Model", "LayoutLMv3Config",
                     few | {"max_position_embeddings": 514, "input_size": side}),
             lambda: _tokens(text) | {"bbox": _boxes(text), "pixel_values": _image(side)}, both),
        Case("UDOP-large encoder, two layers", f"{text} + {patches}",
             partial(_model, "UdopEncoderModel", "UdopConfig", t5 | {"image_size": side}),
             lambda: _tokens(text) | {"bbox": _boxes(text) / 1000, "pixel_values": _image(side)}, both, rounds=5),
        Case("LongT5-base encoder, two layers", "2048", partial(_model, "LongT5EncoderModel", "LongT5Config", long),
             lambda: _tokens(40 if quick else 2048), eager),
        Case("XLNet-base, two layers", str(text), partial(_model, "XLNetModel", "XLNetConfig", xlnet),
             lambda: _tokens(text), eager),
    ]  # fmt: skip
    for size in (96,) if quick else (384, 640):
        options = {"image_size": size, "num_hidden_layers": 2, "use_relative_position_bias": True}
        made.append(Case("BEiT-base, two layers", str(size), partial(_model, "BeitModel", "BeitConfig", options),
                         lambda size=size: {"pixel_values": _image(size)}, both, rounds=5))  # fmt: skip
    for name, encoder, config, width, length, options in (
        (
            "SpeechT5, two layers",
            "speecht5.SpeechT5Encoder",
            "SpeechT5Config",
            768,
            n,
            {"encoder_layers": 2, "encoder_layerdrop": 0.0},
        ),
        (
            "WavLM-base, two layers",
            "wavlm.WavLMEncoder",
            "WavLMConfig",
            768,
            n,
            {"num_hidden_layers": 2, "layerdrop": 0.0},
        ),
        (
            "WavLM-base, two layers",
            "wavlm.WavLMEncoder",
            "WavLMConfig",
            768,
            3 * n,
            {"num_hidden_layers": 2, "layerdrop": 0.0},
        ),
        (
            "Granite Speech layer",
            "granite_speech.GraniteSpeechCTCEncoder",
            "GraniteSpeechEncoderConfig",
            160,
            3 * n,
            {"num_layers": 1},
        ),
        (
            "Wav2Vec2-Conformer-large layer",
            "wav2vec2_conformer.Wav2Vec2ConformerEncoder",
            "Wav2Vec2ConformerConfig",
            1024,
            3 * n,
            {
                "hidden_size": 1024,
                "num_hidden_layers": 1,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
                "position_embeddings_type": "relative",
                "layerdrop": 0.0,
            },
        ),
    ):
        inputs = partial(_states_of, length, width)
        made.append(Case(name, str(length), partial(_part, encoder, config, options), inputs, eager, rounds=5))
    return made


def _model(kind: str, config: str, options: dict[str, Any], way: str) -> nn.Module:
    """A model that transformers exports."""
    import transformers

    made = getattr(transformers, config)(**options)
    made._attn_implementation = way
    return getattr(transformers, kind)(made)


def _part(kind: str, config: str, options: dict[str, Any], way: str) -> nn.Module:
    """A part of a model, ``"file.Class"``, which is called with states."""
    file, name = kind.split(".")
    found = import_module(f"transformers.models.{file}.modeling_{file}")
    made = getattr(import_module("transformers"), config)(**options)
    made._attn_implementation = way
    return getattr(found, name)(made)


def _states_of(length: int, width: int) -> dict[str, Tensor]:
    return {"hidden_states": _states(length, width)}


def _tokens(length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.full((1, length), 5)}


def _boxes(length: int) -> Tensor:
    """Left, upper, right and lower edge, below 1,000."""
    corners, sizes = torch.randint(1, 400, (2, 1, length, 2), generator=torch.Generator().manual_seed(0))
    return torch.cat([corners, corners + sizes], -1)


def _image(size: int) -> Tensor:
    return _states(size, size, 3)[None]


def whole_cases(quick: bool) -> list[Case]:
    """Whole models at the lengths at which they mostly run; in the short mode a layer of each at a toy length."""
    layers, lengths = (1, [40]) if quick else (12, [128, 256, 384, 512])
    made = [Case("DeBERTa-v3-base", str(n), partial(_deberta, layers=layers), lambda n=n: {
        "hidden_states": _states(n, 768), "attention_mask": torch.ones(1, n, dtype=torch.long)}, ("eager",), rounds=5)
        for n in lengths]  # fmt: skip
    made += [Case("T5-base", f"{n} → {n // 4}", partial(_t5_base, layers), lambda n=n: {
        "input_ids": torch.full((1, n), 5), "decoder_input_ids": torch.full((1, n // 4), 6)}, rounds=5)
        for n in lengths[::3]]  # fmt: skip
    if find_spec("gliner"):
        make = partial(_gliner, layers)
        made += [Case("GLiNER base", str(n), make, partial(_with_entities, n), ("eager",), rounds=5) for n in lengths]
    return made


def _near(length: int, window: int) -> Tensor:
    """The mask of a causal window, as transformers makes it for an eager implementation, which sdpa takes too."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    mask = torch.zeros(1, 1, length, length)
    return mask.masked_fill_((distance < 0) | (distance >= window), torch.finfo(mask.dtype).min)


def _inkling(kind: str, way: str) -> nn.Module:
    """Inkling's attention with 8 of its 64 heads of 128, over states of 1,024 in place of 6,144."""
    from transformers import InklingTextConfig
    from transformers.models.inkling.modeling_inkling import InklingAttention

    config = InklingTextConfig(
        hidden_size=1024, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=1, swa_num_attention_heads=8,
        swa_num_key_value_heads=2, layer_types=[kind], attn_implementation=way,
    )  # fmt: skip
    attention = InklingAttention(config, 0)
    nn.init.normal_(attention.rel_logits_proj.proj, std=0.02)  # it has no values at first
    return attention


def _states(length: int, width: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, length, width, generator=torch.Generator().manual_seed(0))


def _t5(vocabulary: int, way: str) -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=vocabulary, dropout_rate=0.0, attn_implementation=way))


def _t5_base(layers: int, way: str) -> nn.Module:
    from transformers import T5Config, T5Model

    sizes = {"d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": layers}
    return T5Model(T5Config(**sizes, vocab_size=100, dropout_rate=0.0, attn_implementation=way))


def _deberta(way: str, layers: int = 1) -> nn.Module:
    from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Encoder

    return DebertaV2Encoder(_deberta_config(layers))


def _deberta_config(layers: int) -> Any:
    from transformers import DebertaV2Config

    return DebertaV2Config(
        vocab_size=100, hidden_size=768, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, position_buckets=256, max_relative_positions=-1, max_position_embeddings=512,
        share_att_key=True, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", position_biased_input=False,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


WIDEST, KINDS = 12, 5
"""GLiNER's longest entity in words, and the number of kinds of entities that it looks for here."""


def _gliner(layers: int, way: str) -> nn.Module:
    from gliner.config import UniEncoderSpanConfig
    from gliner.modeling.base import UniEncoderSpanModel

    config = UniEncoderSpanConfig(
        encoder_config=_deberta_config(layers).to_dict(), vocab_size=100, class_token_index=99, max_width=WIDEST,
        dropout=0.0,
    )  # fmt: skip
    return UniEncoderSpanModel(config)


def _with_entities(length: int) -> dict[str, Tensor]:
    """A text of one word per token, after a special token for each kind of entity with its name, and a separator."""
    prompt = 2 * KINDS + 2
    words = length - prompt - 1
    tokens = torch.randint(5, 95, (1, length))
    tokens[0, 1 : prompt - 1 : 2] = 99
    numbers = torch.zeros(1, length, dtype=torch.long)
    numbers[0, prompt:-1] = torch.arange(1, words + 1)
    begin = torch.arange(words)[:, None].expand(-1, WIDEST)
    spans = torch.stack([begin, begin + torch.arange(WIDEST)], -1).flatten(0, 1)[None]
    return {
        "input_ids": tokens, "attention_mask": torch.ones_like(tokens), "words_mask": numbers,
        "text_lengths": torch.tensor([[words]]), "span_idx": spans, "span_mask": spans[..., 1] < words,
    }  # fmt: skip


def _wav2vec2_bert(way: str) -> nn.Module:
    from transformers import Wav2Vec2BertConfig
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertEncoder

    config = Wav2Vec2BertConfig(num_hidden_layers=1, attention_dropout=0.0, hidden_dropout=0.0, layerdrop=0.0)
    return Wav2Vec2BertEncoder(config)


def _parakeet(kind: str, way: str) -> nn.Module:
    """The attention of Parakeet, or a layer (``"Block"``)."""
    from transformers.models.parakeet import modeling_parakeet

    config = _parakeet_config()
    config._attn_implementation = way
    made = getattr(modeling_parakeet, f"ParakeetEncoder{kind}")(config, 0)
    with torch.no_grad():
        for name, bias in made.named_parameters():
            if name.endswith(("bias_u", "bias_v")):
                bias.copy_(_states(*bias.shape)[0])  # they are zero at first
    return made


def _parakeet_config() -> Any:
    from transformers import ParakeetEncoderConfig

    return ParakeetEncoderConfig(attention_dropout=0.0, max_position_embeddings=HOUR)


def _with_sines(length: int) -> dict[str, Tensor]:
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderRelPositionalEncoding

    states = _states(length, 1024)
    return {
        "hidden_states": states,
        "position_embeddings": ParakeetEncoderRelPositionalEncoding(_parakeet_config())(states),
    }


def _vits(way: str) -> nn.Module:
    from transformers import VitsConfig
    from transformers.models.vits.modeling_vits import VitsTextEncoder

    return VitsTextEncoder(VitsConfig(hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, layerdrop=0.0))


def _sam(way: str, side: int) -> nn.Module:
    from transformers import SamVisionConfig
    from transformers.models.sam import modeling_sam

    config = SamVisionConfig(use_rel_pos=True, image_size=16 * side)
    config._attn_implementation = way
    kind = modeling_sam.SamVisionSdpaAttention if way == "sdpa" else modeling_sam.SamVisionAttention
    attention = kind(config, window_size=0)
    with torch.no_grad():
        for table in (attention.rel_pos_h, attention.rel_pos_w):
            table.copy_(_states(*table.shape)[0] * 0.02)  # they are zero at first
    return attention


def model_of(case: Case, way: str) -> nn.Module:
    """The model of one way in eval mode; all ways have the same weights."""
    torch.manual_seed(0)
    model = case.make(case.ways[0] if way == PATCHED else way)
    if way == PATCHED:
        rg.interop.transformers.patch(model)
    return model.eval()


def output_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The first tensor in a model's output."""
    found: Any = model(**inputs)
    return found if isinstance(found, Tensor) else found[0]


def forward(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The output, computed without gradients."""
    with torch.no_grad():
        return output_of(model, inputs)


def train(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The output, and the gradients of all weights."""
    output = output_of(model, inputs)
    output.backward(torch.ones_like(output))
    return output


def measured(case: Case, with_peaks: bool, quick: bool) -> Rows:
    """A row per way of theirs: milliseconds and MiB of theirs and ours, and the ratios of time.

    Raises:
        Wrong: outputs differ by more than rounding.
    """
    inputs, ways = case.inputs(), (*case.ways, PATCHED)
    models = {way: model_of(case, way) for way in ways}
    wanted = forward(models[case.ways[0]], inputs)
    for way, model in models.items():
        error = float((forward(model, inputs) - wanted).norm() / wanted.norm())
        if not error <= ROUNDING:
            raise Wrong(f"{case.name}, {case.length}: {way} is {error:.2g} from {case.ways[0]}")
    calls = [("forward", forward)] + ([] if case.forward_only else [("forward + backward", train)])
    rows: dict[str, dict[str, object]] = {
        way: {"model": case.name, "n": case.length, "theirs": way} for way in case.ways
    }
    for what, call in calls:
        timed = {way: partial(Clock().time, partial(call, model, inputs)) for way, model in models.items()}
        taken = {way: [time for _, time in found] for way, found in in_turn(timed, case.rounds).items()}
        of_case = "docs.benchmarks.patched", *(["--quick"] if quick else []), "--peak", f"{case.name}, {case.length}"
        peaks = {way: fresh_peak(*of_case, way, what) if with_peaks else None for way in ways}
        for way in case.ways:
            rows[way] |= {
                f"{what}, theirs ms": round(quartiles(taken[way])[1], 1),
                f"{what}, ours ms": round(quartiles(taken[PATCHED])[1], 1),
                f"{what}, ours / theirs": ratio(taken[PATCHED], taken[way]),
                f"{what}, MiB": _both(peaks[way], peaks[PATCHED]),
            }
    for way in rows.values():
        for what in ("theirs ms", "ours ms", "ours / theirs", "MiB"):
            way.setdefault(f"forward + backward, {what}", "–")
    return list(rows.values())


def _both(theirs: float | None, ours: float | None) -> str:
    return " / ".join("–" if x is None else f"{x:,.0f}" for x in (theirs, ours))


def print_peak(name: str, way: str, what: str, quick: bool) -> None:
    """Print the peak MiB of one call, after a call at a toy length has loaded everything."""
    (case,) = [case for case in cases(quick) + whole_cases(quick) if f"{case.name}, {case.length}" == name]
    call = forward if what == "forward" else train
    small = next(other for other in cases(True) + whole_cases(True) if other.name == case.name)
    call(model_of(small, way), small.inputs())
    model, inputs = model_of(case, way), case.inputs()
    print(peak_mib(lambda: call(model, inputs)))


def print_hour() -> None:
    """Print peak memory and seconds of a patched layer of Parakeet over one hour; the scores of theirs take 60 GiB."""
    model = _parakeet("Block", "sdpa").eval()
    rg.interop.transformers.patch(model)
    forward(model, _with_sines(100))
    inputs = _with_sines(HOUR)
    taken: list[float] = []
    peak = peak_mib(lambda: taken.append(Clock().time(partial(forward, model, inputs))[1]))
    publish([{"model": "Parakeet layer", "n": HOUR, "peak MiB": round(peak), "seconds": round(taken[0] / 1e3, 1)}])


def main(given: Sequence[str] | None = None) -> int:
    """Print a table; return the exit status, 1 if outputs differ."""
    parser = argparse.ArgumentParser(prog="docs.benchmarks.patched", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression for the names of models")
    parser.add_argument("--quick", action="store_true", help="toy lengths; the figures mean nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--no-peaks", action="store_true", help="measure time only")
    parser.add_argument("--peak", nargs=3, metavar=("CASE", "WAY", "WHAT"), help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help="whole models of base size")
    parser.add_argument("--hour", action="store_true", help="only a layer of Parakeet over one hour of audio")
    options = parser.parse_args(given)
    torch.set_num_threads(options.threads)
    if options.hour:
        print_hour()
        return 0
    if options.peak:
        print_peak(*options.peak, options.quick)
        return 0
    rows: Rows = []
    try:
        for case in (whole_cases if options.whole else cases)(options.quick):
            if re.search(options.only, case.name):
                rows += measured(case, not options.no_peaks, options.quick)
                print(f"{case.name}, {case.length}: done", file=sys.stderr)
    except Wrong as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    publish(rows, path=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
