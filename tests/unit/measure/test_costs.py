import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tests.builders import network, table_for
from tests.raising import raises

from trimaran.base.job import Job
from trimaran.jobs.resolve import JobSource
from trimaran.measure.costs import fingerprint_here, job_digest, measure_costs, select


@dataclass(frozen=True)
class Source:
    """What a session knows of a job, as far as its digest goes."""

    reference: str
    precision: str = "fp32"

    def make(self) -> Job:
        raise NotImplementedError(self.reference)


def test_an_edited_job_file_is_another_job(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("first")
    make = Source(f"{path}:make").make
    before = job_digest(make, network())
    assert job_digest(make, network()) == before
    path.write_text("second")
    assert job_digest(make, network()) != before


def test_an_override_of_the_job_makes_it_another() -> None:
    graph = network()
    assert job_digest(Source("digits").make, graph) != job_digest(Source("digits", precision="bf16").make, graph)
    assert job_digest(Source("digits").make, graph) != job_digest(Source("digits").make, network(3))


def test_a_plan_and_its_training_have_one_measurement() -> None:
    """A plan file names the batch; a training may say epochs, seed and target anew."""
    graph, named = network(), job_digest(JobSource(reference="digits").make, network())
    for source in (
        JobSource(reference="digits", global_batch_size=64),
        JobSource(reference="digits", epochs=1, seed=3, target=0.9),
    ):
        assert job_digest(source.make, graph) == named
    assert job_digest(JobSource(reference="digits", precision="bf16").make, graph) != named
    assert job_digest(JobSource(reference="wide").make, graph) != named


def test_a_table_is_narrowed_to_what_concerns_a_job() -> None:
    """A network of 2 operations shares these and the loss with one of 4; nothing else is its own."""
    graph = network(4)
    table = table_for(graph, whole_s=1.0)
    stored = select(table, network(2), job="nobody")
    assert {key.content for key in stored.operations} == {"content of op0", "content of op1", "content of loss"}
    assert (stored.wholes, stored.steps, stored.curves) == ({}, {}, table.curves)


def test_measuring_needs_batches_and_ranks() -> None:
    for ranks, batches in ((2, []), (2, [0, 4]), (0, [4])):
        with raises("measure.bad-sizes", match=r"\b1\b"):
            measure_costs(Source("digits").make, network(), ranks=ranks, batches=batches)


def test_the_fingerprint_tells_how_many_ranks_were_busy() -> None:
    one, two = fingerprint_here(1), fingerprint_here(2)
    assert (one.ranks, two.ranks, two.threads) == (1, 2, 1)
    assert one.torch == two.torch
    assert one.cores >= 1


def test_the_step_of_a_job_is_found_by_its_graph() -> None:
    """In the cache it is under the digest of the job, so that jobs with one graph do not mix; see `find_missing`."""
    graph = network(4)
    table = table_for(graph)
    kept = dataclasses.replace(table, steps={"mine": table.steps[graph.digest], "yours": table.steps[graph.digest]})
    assert list(select(kept, graph, job="mine").steps) == [graph.digest]
