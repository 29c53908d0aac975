"""Strategies, cards and traffic: what must hold whatever the numbers are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_recipes import SMALL
from toy_recipe.recipe import Toy
from toy_runs import toy_config

from overt.config import Config, build_recipe
from overt.engine.loader import StepBatch
from overt.engine.strategy.automatic import records_on_cuda
from overt.errors import ConfigError
from overt.tools.plan import engine_step, predict
from overt.tools.plan.communication import (
    BUCKET_BYTES,
    Network,
    Traffic,
    ddp_traffic,
    fsdp_traffic,
    one_way_seconds,
)
from overt.tools.plan.engine_step import (
    EngineStep,
    ExampleLoader,
    Model,
    StepMemory,
    recipe_on_cuda,
)
from overt.tools.plan.predict import (
    CARDS,
    CONTEXT,
    GAPS,
    GIB,
    LIBRARIES,
    Fitted,
    Request,
    device_memory,
    fit,
    largest_batch,
    make_plan,
    sharded_memory,
)

MODEL = Model(
    parameters=25_000_000, frozen=0, saved=100_000_000, blocks=10, unit_sizes=(2_000_000,) * 10
)
STEP = StepMemory(
    batch_size=8, peak=3 * GIB, parameters=10**8, frozen=0, optimizer=2 * 10**8, gradients=10**8,
    batch=10**6, activations=2 * GIB, transient=2 * GIB, flops=10**12,
)  # fmt: skip
NETWORK = Network()


def test_ddp_holds_all_gradients_and_fsdp_ever_smaller_shares() -> None:
    static = STEP.parameters + STEP.optimizer + STEP.gradients
    ddp = [device_memory(STEP, MODEL, "ddp", n) for n in (2, 8, 64)]
    fsdp = [device_memory(STEP, MODEL, "fsdp", n) for n in (2, 8, 64)]
    assert ddp[0] == ddp[1] == ddp[2] >= static + STEP.transient
    assert fsdp == sorted(fsdp, reverse=True)
    assert fsdp[-1] < ddp[-1]


@pytest.mark.parametrize("card", list(CARDS.values()))
def test_the_largest_batch_fits_and_one_more_does_not(card: float) -> None:
    other = StepMemory(**{**vars(STEP), "batch_size": 16, "peak": 5 * GIB})
    line = Fitted(STEP, other)

    def memory(size: int) -> int:
        return device_memory(line.at(size), MODEL, "single", 1)

    most = largest_batch(memory, card)
    room = (card * GIB - CONTEXT) / (1 + GAPS)
    assert memory(most) <= room < memory(most + 1)


def test_what_never_fits_is_zero() -> None:
    assert largest_batch(lambda size: 100 * GIB, 24) == 0


def test_one_device_sends_nothing() -> None:
    traffic = ddp_traffic(10**9, 0.1, 1, NETWORK)
    assert (traffic.bytes_sent, traffic.seconds, traffic.efficiency) == (0, 0.0, 1.0)


def test_bytes_are_those_of_a_ring() -> None:
    size = 8 * 10**8
    assert ddp_traffic(size, 0.1, 8, NETWORK).bytes_sent == 2 * 7 * 10**8
    assert fsdp_traffic(size, size, 10, 0.1, 8, NETWORK).bytes_sent == 3 * 7 * 10**8


def test_more_nodes_and_slower_links_never_help() -> None:
    devices = (2, 8, 16, 64, 512)
    shares = [ddp_traffic(4 * 10**9, 0.05, n, NETWORK).efficiency for n in devices]
    assert shares == sorted(shares, reverse=True)
    slow = Network(network_gbit=50.0)
    assert one_way_seconds(10**9, 64, slow) > one_way_seconds(10**9, 64, NETWORK)
    assert one_way_seconds(10**9, 8, slow) == one_way_seconds(10**9, 8, NETWORK)


def test_a_long_step_hides_all_but_the_last_bucket() -> None:
    traffic = ddp_traffic(4 * 10**8, 10.0, 64, NETWORK)
    buckets = -(-4 * 10**8 // (25 * 2**20))
    assert traffic.exposed == pytest.approx(traffic.seconds / buckets)


def test_what_holds_up_a_step_is_named() -> None:
    size = 4 * 10**9
    assert ddp_traffic(size, 10.0, 64, NETWORK).dominant == "computing"  # all of it is hidden
    assert ddp_traffic(size, 0.01, 8, NETWORK).dominant == "within nodes"
    slow = Network(network_gbit=50.0)
    assert ddp_traffic(size, 0.01, 64, slow).dominant == "between nodes"
    many = fsdp_traffic(10**6, 10**6, 100, 1e-3, 64, NETWORK)
    assert many.dominant == "latency"
    assert sum(many.parts.values()) == pytest.approx(many.seconds)


def test_a_recorded_pass_hides_nothing() -> None:
    plain, recorded = (
        ddp_traffic(4 * 10**8, 1.0, 64, NETWORK, is_recorded) for is_recorded in (False, True)
    )
    assert recorded.exposed == recorded.seconds < plain.seconds  # one message, one latency
    assert plain.exposed < recorded.exposed


def test_the_fsdp_column_is_the_fsdp_step_at_any_world_size(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "model.width=4096", "training.strategy=fsdp")
    recipe = build_recipe(config)
    few, more = (fit(config, recipe, (4, 2), False, "fsdp", ranks)[1].at(4) for ranks in (2, 4))
    predicted = sharded_memory(few, 2, 4)
    assert predicted == pytest.approx(more.peak + LIBRARIES, rel=1e-3)
    assert predicted < sharded_memory(few, 2, 2)


def test_a_plan_says_whether_fsdp_was_run_or_calculated(tmp_path: Path) -> None:
    notes, memory = {}, {}
    for strategy in ("fsdp", "ddp"):
        config = toy_config(tmp_path, f"training.strategy={strategy}", "training.batch_size=4")
        request = Request((2, 4), "H200", 0.3, None, 64, NETWORK)
        plan = make_plan(config, build_recipe(config), request)
        notes[strategy] = " ".join(plan["notes"])
        memory[strategy] = [row["memory_bytes"]["fsdp"]["plain"] for row in plan["devices"]]
    assert "training.strategy=fsdp" in notes["ddp"]
    assert "FSDP is a formula" not in notes["fsdp"]
    assert memory["fsdp"] != memory["ddp"]
    assert memory["fsdp"][0] > memory["fsdp"][1]


def planned(
    config: Config, devices: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, **model: int
) -> dict[str, Any]:
    """Return a plan whose steps are made up: only choices are asked for."""
    line = Fitted(STEP, replace(STEP, batch_size=16))
    numbers = replace(MODEL, compile_units=10, **model)
    monkeypatch.setattr(predict, "fit", lambda *_, **__: (numbers, line))
    request = Request(devices, "H200", 0.3, 0.01, 10**6, NETWORK)
    return make_plan(config, recipe_on_cuda(config), request)


def exposed(plan: dict[str, Any]) -> tuple[bool, ...]:
    """Whether a step waits for all of its communication."""
    links = [row["traffic"]["ddp"] for row in plan["devices"] if row["devices"] > 1]
    return tuple(link["exposed"] == link["seconds"] for link in links)


def test_a_pass_that_cuda_would_record_is_planned_as_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SMALL["hjepa_tiny"].config("absent", "training.cuda_graph=auto")
    assert exposed(planned(config, (8, 64), monkeypatch)) == (True, True)
    never = SMALL["hjepa_tiny"].config("absent", "training.cuda_graph=false")
    assert exposed(planned(never, (8, 64), monkeypatch)) == (False, False)


def test_a_loss_over_all_ranks_is_not_planned_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SMALL["hjepa_tiny"].config("absent", "training.cuda_graph=auto", "loss.type=cjepa")
    plan = planned(config, (1, 8), monkeypatch)
    assert exposed(plan) == (False,)
    alone, on_ranks = plan["notes"][:2]
    assert "1 device" in alone
    assert "cuda_graph=true" in alone
    assert "8 device" in on_ranks
    assert "cuda_graph=false" in on_ranks


def test_a_fake_step_does_not_change_what_is_recorded() -> None:
    short = ["data.random_sequence_len=2", "training.cuda_graph=auto"]
    config = SMALL["cotracker3_tiny"].config("absent", *short)
    recipe = recipe_on_cuda(config)
    assert not records_on_cuda(config.training, recipe, 1)
    EngineStep(config, recipe, False)
    assert not records_on_cuda(config.training, recipe, 1)


@pytest.mark.long
def test_clips_of_different_lengths_are_not_planned_as_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[bool] = []

    def traffic(
        size: int, seconds: float, devices: int, network: Network, graph: bool, passes: int
    ) -> Traffic:
        recorded.append(graph)
        return ddp_traffic(size, seconds, devices, network, graph, passes)

    monkeypatch.setattr(predict, "ddp_traffic", traffic)
    short = ["data.sequence_len=4", "data.random_sequence_len=2", "training.cuda_graph=auto"]
    config = SMALL["cotracker3_tiny"].config("absent", *short)
    request = Request((8,), "H200", 0.3, 1e-4, 64, NETWORK)
    recipe = recipe_on_cuda(config)
    plan = make_plan(config, recipe, request)
    assert "different shapes" in plan["notes"][0]
    assert isinstance(recipe.stackable, str)
    assert recorded == [False]


def test_notes_say_what_auto_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "replayable", True)
    auto = ("training.compile=auto", "training.cuda_graph=auto")
    config = toy_config(tmp_path, *auto, "training.num_steps=1000")
    (note, *_) = planned(config, (1, 8), monkeypatch)["notes"]
    assert note.startswith("auto on CUDA: compile=blocks")
    alone, large, *_ = planned(config, (1, 8), monkeypatch, parameters=2 * 10**8)["notes"]
    assert "cuda_graph=true" in alone
    assert "gradients this large" in large
    chosen = toy_config(tmp_path, "training.compile=none", "training.cuda_graph=false")
    notes = planned(chosen, (1, 8), monkeypatch)["notes"]
    assert not any("auto on CUDA" in note for note in notes)


@pytest.mark.parametrize(
    ("gib", "recompute", "words"),
    [
        ("null", "frames", "training.memory_gib=N predicts that of N GiB"),
        ("80", "none", "training.memory_gib=80: predicted with recompute=none"),
        ("0.5", "frames", "training.memory_gib=0.5: predicted with recompute=frames"),
    ],
)
def test_the_memory_of_the_card_decides_what_is_computed_again(
    gib: str, recompute: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ("model.recompute=auto", f"training.memory_gib={gib}")
    config = SMALL["lbm_tiny"].config("absent", *memory)
    recipe: Any = recipe_on_cuda(config)
    steps = []

    def fitted(*_: Any, **__: Any) -> Any:
        steps.append(recipe.recompute)
        return MODEL, Fitted(STEP, replace(STEP, batch_size=16))

    monkeypatch.setattr(predict, "fit", fitted)
    plan = make_plan(config, recipe, Request((1,), "H200", 0.3, None, 64, NETWORK))
    assert set(steps) == {recompute}
    assert any(words in note for note in plan["notes"])


def test_an_unknown_card_is_refused_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a step runs before the card is refused")

    monkeypatch.setattr(predict, "fit", never)
    config = toy_config(tmp_path)
    with pytest.raises(ConfigError, match="--gpu Abacus"):
        make_plan(config, build_recipe(config), Request((1,), "Abacus", 0.3, None, 64, NETWORK))


def with_two_passes(
    folder: Path, strategy: str, devices: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[StepMemory, int, Model]:
    """Return the engine's step, its peak with a second micro-batch, and the model's numbers."""
    config = toy_config(folder, "model.width=16384")
    recipe = build_recipe(config)
    step = EngineStep(config, recipe, False, strategy, devices)
    once = step.run(recipe.example_batch(4), 4)

    class Twice(ExampleLoader):
        def next_step(self) -> StepBatch:
            batch = super().next_step()
            return replace(batch, micro_batches=2 * batch.micro_batches)

    with monkeypatch.context() as patched:
        patched.setattr(engine_step, "ExampleLoader", Twice)
        return once, step.run(recipe.example_batch(4), 4).peak, step.numbers


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2), ("ddp", 4)])
def test_gradients_that_accumulate_are_there_at_the_peak(
    strategy: str, devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, _, model = with_two_passes(tmp_path, "single", 1, monkeypatch)
    _, peak, _ = with_two_passes(tmp_path, strategy, devices, monkeypatch)
    predicted = device_memory(alone, model, strategy, devices, accumulates=True) - LIBRARIES
    assert predicted == pytest.approx(peak, rel=0.03)


@pytest.mark.parametrize("devices", [2, 4])
def test_gradients_that_accumulate_are_whole_with_fsdp(
    devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, peak, _ = with_two_passes(tmp_path, "fsdp", devices, monkeypatch)
    predicted = sharded_memory(step, devices, devices, accumulates=True) - LIBRARIES
    assert peak <= predicted <= 1.05 * peak
    alone, _, model = with_two_passes(tmp_path, "single", 1, monkeypatch)
    calculated = device_memory(alone, model, "fsdp", devices, accumulates=True)
    assert calculated - device_memory(alone, model, "fsdp", devices) == alone.gradients


def test_only_the_last_of_several_passes_hides_what_ddp_sends() -> None:
    size = 4 * 10**8
    one, four = (ddp_traffic(size, 0.02, 64, NETWORK, passes=passes) for passes in (1, 4))
    assert four.bytes_sent == one.bytes_sent
    backward = 0.02 / 4 * 2 / 3
    last = four.seconds / -(-size // BUCKET_BYTES)
    assert four.exposed == pytest.approx(last + max(0.0, four.seconds - last - backward))
    assert four.efficiency < one.efficiency


def test_fsdp_gathers_again_for_every_pass_and_reduces_once() -> None:
    size, step = 8 * 10**8, 0.1
    one, four, early = (
        fsdp_traffic(size, size, 10, passes * step, 8, NETWORK, passes, reductions)
        for passes, reductions in ((1, 1), (4, 1), (4, 4))
    )
    assert one.bytes_sent == (2 + 1) * 7 * 10**8
    assert four.bytes_sent == (4 * 2 + 1) * 7 * 10**8
    assert early.bytes_sent == 4 * one.bytes_sent
    assert early.exposed == pytest.approx(4 * one.exposed)
    assert early.efficiency == pytest.approx(one.efficiency)
    assert four.exposed < early.exposed


def test_a_plan_counts_accumulation(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for accumulation, early in ((1, "false"), (4, "false"), (4, "true")):
        config = SMALL["hjepa_tiny"].config(
            "absent", "training.batch_size=8", "training.global_batch_size=null",
            f"training.accumulation_steps={accumulation}", "training.cuda_graph=false",
            f"training.reduce_every_micro_batch={early}",
        )  # fmt: skip
        rows += planned(config, (8,), monkeypatch)["devices"]
    memory = [{name: size["plain"] for name, size in row["memory_bytes"].items()} for row in rows]
    once, later, early = memory
    assert later["ddp"] - once["ddp"] == later["fsdp"] - once["fsdp"] == STEP.gradients
    assert early == {"ddp": later["ddp"], "fsdp": once["fsdp"]}
    sent = [row["traffic"]["fsdp"]["bytes_sent"] for row in rows]
    assert sent == [sent[0], 3 * sent[0], 4 * sent[0]]
    assert rows[1]["traffic"]["ddp"]["bytes_sent"] == rows[0]["traffic"]["ddp"]["bytes_sent"]


def test_step_time_is_that_of_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    for strategy in ("ddp", "fsdp"):
        words = (f"training.strategy={strategy}", "training.cuda_graph=false")
        config = SMALL["hjepa_tiny"].config("absent", *words)
        for row in planned(config, (8, 64), monkeypatch)["devices"]:
            waiting = row["seconds_per_step"] - 0.01 * row["batch_size"]
            assert waiting == pytest.approx(row["traffic"][strategy]["exposed"])


def test_blocks_that_are_recomputed_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit_made_up(*_: Any, checkpointing: bool) -> tuple[Model, Fitted]:
        step = replace(STEP, flops=4 * 10**12 if checkpointing else 3 * 10**12)
        return MODEL, Fitted(step, replace(step, batch_size=16))

    monkeypatch.setattr(predict, "fit", fit_made_up)
    for again, flops in (("false", 3 * 10**12), ("true", 4 * 10**12)):
        words = f"training.activation_checkpointing={again}"
        config = SMALL["hjepa_tiny"].config("absent", words)
        request = Request((1,), "H200", 0.3, None, 64, NETWORK)
        (row,) = make_plan(config, recipe_on_cuda(config), request)["devices"]
        assert row["flops_per_device"] == flops


def test_one_global_batch_has_one_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("training.batch_size=null", "training.global_batch_size=64")
    same = SMALL["hjepa_tiny"].config("absent", *words, "optimizer.lr_base_batch=null")
    for row in planned(same, (1, 8), monkeypatch)["devices"]:
        rates = row["learning_rate"]
        assert rates["none"] == rates["linear"] == rates["sqrt"]
    words = ("training.batch_size=8", "training.global_batch_size=null")
    grown = SMALL["hjepa_tiny"].config("absent", *words, "optimizer.lr_base_batch=null")
    rates = planned(grown, (8,), monkeypatch)["devices"][0]["learning_rate"]
    assert rates["linear"] == pytest.approx(8 * rates["none"])


def test_too_few_samples_for_some_devices_leave_the_plan_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epochs = ("training.num_steps=null", "training.num_epochs=2", "training.drop_last=true")
    batch = ("training.batch_size=8", "training.global_batch_size=null")
    config = SMALL["hjepa_tiny"].config("absent", *epochs, *batch)
    line = Fitted(STEP, replace(STEP, batch_size=16))
    monkeypatch.setattr(predict, "fit", lambda *_, **__: (MODEL, line))
    request = Request((1, 64), "H200", 0.3, 0.01, 32, NETWORK)
    one, many = make_plan(config, recipe_on_cuda(config), request)["devices"]
    assert one["steps"] == 2 * 32 // 8
    assert "fewer than one global batch of 512" in many["problem"]
