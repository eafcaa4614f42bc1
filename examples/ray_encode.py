"""Ray Data: a column of Parquet files becomes a column of vectors, on every node of a cluster. Needs pumice[arrow] and ray[data].

`python examples/ray_encode.py MODEL IN OUT CHECKPOINT` encodes the column "text" of the Parquet files in the folder IN. The model and the
three folders must be there under the same path on every node. If the job fails, the same command goes on with the rows that are missing."""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data.checkpoint import CheckpointConfig

from pumice.arrow import Encode


def encode(model: str, source: str, target: str, checkpoint: str, *, nodes: int, cpus: int, rows: int = 4096, **options: Any) -> None:
    """Encodes all files.

    nodes: how many actors there are, one for each node.  cpus: the processors of a node that its actor computes on. Two must be left, for
        the tasks that read and write and for the checkpoint's own actor: if actors hold all, the job waits for ever.
    rows: rows in a batch.  options: those of Encode."""
    # Rows whose "id" stands in the checkpoint were written before. They are neither encoded nor written again.
    context = DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(id_column="id", checkpoint_path=checkpoint, delete_checkpoint_on_success=False)
    vectors = ray.data.read_parquet(source).map_batches(
        Encode,
        fn_constructor_args=[model],
        fn_constructor_kwargs={"load": {"device": "cpu", "threads": cpus}, **options},
        batch_format="pyarrow",
        batch_size=rows,
        num_cpus=cpus,
        compute=ActorPoolStrategy(size=nodes),
    )
    vectors.write_parquet(target)  # the order of rows is not that of the input: "id" says which is which


if __name__ == "__main__":
    ray.init("auto")
    alive = [node for node in ray.nodes() if node["Alive"]]
    encode(*sys.argv[1:5], nodes=len(alive), cpus=max(1, int(min(node["Resources"].get("CPU", 1) for node in alive)) - 2))
