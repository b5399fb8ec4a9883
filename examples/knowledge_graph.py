"""A knowledge graph from networkx, in mini-batches
================================================

Label facts by their relation, sample the neighbours of some persons, and follow three facts to a country.

In which country was somebody's mother born? No fact says so: the answer takes three in a row, mother, born in, in. Each
person also has a father and a boss, and lives in another city. The graph is made up.
"""

import random

import networkx as nx
import torch
from torch import nn
from torch_geometric.utils import k_hop_subgraph

import relgraph as rg
from relgraph.interop.networkx import from_networkx

RELATIONS = ("born in", "boss", "father", "in", "lives in", "mother")
LABELER = rg.EdgeType(RELATIONS, self_loop=True)  # a node attends to itself and along facts, to nothing else
BLIND = rg.EdgeType(1, self_loop=True)  # the same pairs, and all facts have one label
COUNTRIES, HOPS = ("Chile", "Ghana", "Nepal", "Norway"), 3


def make_facts(people, rng):
    """Persons and cities, which only their kind describes; countries have names."""
    facts = nx.MultiDiGraph()
    facts.add_nodes_from((country, {"kind": country}) for country in COUNTRIES)
    cities, persons = (
        [f"{kind} {number}" for number in range(count)] for kind, count in (("city", 200), ("person", people))
    )
    facts.add_nodes_from(cities, kind="city")
    facts.add_nodes_from(persons, kind="person")
    facts.add_edges_from((city, rng.choice(COUNTRIES), {"fact": "in"}) for city in cities)
    for person in persons:
        facts.add_edges_from((person, rng.choice(cities), {"fact": fact}) for fact in ("born in", "lives in"))
        facts.add_edges_from((person, rng.choice(persons), {"fact": fact}) for fact in ("mother", "father", "boss"))
    return facts, persons


def follow(facts, node, *relations):
    """The node that these facts lead to."""
    for relation in relations:
        node = next(end for _, end, fact in facts.edges(node, data="fact") if fact == relation)
    return node


# %%
# An edge lets its end look at its beginning, so reversed facts let a person look at the employer.

FACTS, PERSONS = make_facts(4000, random.Random(0))
READ = from_networkx(FACTS.reverse(), edge_type="fact", types=RELATIONS, node_type="kind")
COUNTRY = torch.tensor([COUNTRIES.index(follow(FACTS, who, "mother", "born in", "in")) for who in PERSONS])
FIRST = READ.nodes.index(PERSONS[0])  # persons have the last numbers

# %%
# A batch is the part of the graph within three facts of some persons. PyG's ``NeighborLoader`` samples such parts too,
# with the package ``pyg-lib``; this needs no further package. :doc:`/howto/graphs` does it by ``NodeLoader``.


def sample(persons, labeler):
    """The kinds of the nodes near these persons, the labels of their facts, and where the persons are."""
    graph = READ.graph
    nodes, edges, places, kept = k_hop_subgraph(
        FIRST + persons, HOPS, graph.edge_index, relabel_nodes=True, num_nodes=graph.num_nodes
    )
    types = graph.edge_type[kept] if labeler is LABELER else torch.zeros(int(kept.sum()), dtype=torch.long)
    return graph.node_type[nodes], labeler(rg.Graph(edges, len(nodes), edge_type=types)), places


class Reader(nn.Module):
    """One layer of attention for each fact in a row; a score for each country at each node."""

    def __init__(self, labeler):
        super().__init__()
        layer = rg.RelationEncoderLayer(32, 4, 64, 0.0, norm_first=True, labeler=labeler)
        self.kind, self.encoder = nn.Embedding(len(READ.node_types), 32), rg.RelationEncoder(layer, HOPS)
        self.answer = nn.Linear(32, len(COUNTRIES))

    def forward(self, kinds, labels):
        return self.answer(self.encoder(self.kind(kinds), labels=labels))


def train(labeler, persons, seed, steps=120):
    torch.manual_seed(seed)
    model = Reader(labeler)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(steps):
        batch = persons[torch.randint(len(persons), (64,))]
        kinds, labels, places = sample(batch, labeler)
        loss = nn.functional.cross_entropy(model(kinds, labels)[places], COUNTRY[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


if __name__ == "__main__":
    order = torch.randperm(len(PERSONS), generator=torch.Generator().manual_seed(0))
    known, asked = order[:3000], order[3000:]
    for labeler in (BLIND, LABELER):
        model = train(labeler, known, seed=0)
        kinds, labels, places = sample(asked, labeler)
        right = model(kinds, labels)[places].argmax(-1) == COUNTRY[asked]
        print(f"{labeler}: {right.double().mean():.1%} right")

# %%
# How much attention each relation gets from persons, by layer and head: all heads of the last layer look at the mother,
# two of the layer before at the place of birth. With seeds 0 to 2 (edit ``seed=0``), the model with relations is right
# for 100.0 % ± 0.0. Without them it sees the same facts and is right for 36.0 % ± 9.1; a quarter is chance (2026-11,
# one thread of a busy AMD EPYC).

if __name__ == "__main__":
    with rg.record_attention(model) as record:
        model(kinds, labels)
    mass = torch.stack([call.label_mass[:, places].mean(1) for (call,) in record.values()])
    rg.plot.label_mass(mass, LABELER.names, axes="LHR")
