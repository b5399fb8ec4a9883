"""Plans: every labeling as a few kinds of regions that kernels understand."""

from relgraph.labels.base import NOT_ATTENDING as NOT_ATTENDING
from relgraph.labels.base import graph_at as graph_at
from relgraph.plan.codec import decode as decode
from relgraph.plan.codec import encode as encode
from relgraph.plan.codec import on_device as on_device
from relgraph.plan.lower import lower as lower
from relgraph.plan.lower import plain as plain
from relgraph.plan.memory import memo as memo
from relgraph.plan.regions import DEAD as DEAD
from relgraph.plan.regions import EXTRA as EXTRA
from relgraph.plan.regions import FIRST as FIRST
from relgraph.plan.regions import Band as Band
from relgraph.plan.regions import Block as Block
from relgraph.plan.regions import Csr as Csr
from relgraph.plan.regions import LabelPlan as LabelPlan
from relgraph.plan.regions import Part as Part
from relgraph.plan.regions import Region as Region
from relgraph.plan.regions import Uniform as Uniform
from relgraph.plan.window import dense_ids as dense_ids
from relgraph.plan.window import distances as distances
from relgraph.plan.window import ids_by_distance as ids_by_distance
from relgraph.plan.window import inside_graphs as inside_graphs
from relgraph.plan.window import listed_pairs as listed_pairs
