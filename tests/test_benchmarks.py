"""Each script of benchmarks/ runs on a tiny case; times are not checked.

Most of them are slow, and `make test` only starts them.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from scipy import stats

from tests.helpers import ROOT, peer

peer("electra_pytorch")

FOLDER = ROOT / "benchmarks"
SMALL = ("--experiment", "transformer_tiny", "--length", "16", "--batch", "2")
LONGER = ("ablation_workers", "checkpoint", "choices", "data", "encoders", "finetuning", "int8", "lengths", "memory",
          "predicting", "revisions")  # fmt: skip
LINUX = pytest.mark.skipif(
    not Path("/proc/cpuinfo").exists(), reason="processor and memory are read from Linux's /proc"
)
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a script with --out, and return its line of results.jsonl."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(script: str, *arguments: str) -> dict[str, Any]:
        threads = str(torch.get_num_threads())
        out = ("--threads", threads, "--out", str(tmp_path))
        monkeypatch.setattr(sys, "argv", [script, *arguments, *out])
        runpy.run_path(str(FOLDER / script), run_name="__main__")
        assert (tmp_path / "results.md").read_text(encoding="utf-8").startswith("## ")
        (line,) = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
        found: dict[str, Any] = json.loads(line)
        return found

    yield run
    for name in set(sys.modules) - before:  # names such as `memory` are modules of the scripts
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    "experiment",
    ["bert_small", *(pytest.param(name, marks=pytest.mark.slow) for name in ("performer_small", "reformer_small"))],
)
def test_step(run: Run, experiment: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = ("--experiment", experiment, "--length", "16", "--batch", "1", "--ours", "fp32+gumbel", "--rounds", "2")
    found = run("step.py", *case)
    missing = {"txtai"} - ({"txtai"} if experiment == "bert_small" else set())  # which builds no other networks
    assert found["missing"].keys() == missing
    assert found["seconds"].keys() == {"electra-pytorch", "usual step", "electra_lab fp32+gumbel", "txtai"} - missing
    assert all(len(values) == 2 for values in found["seconds"].values())
    assert found["flops"] > 0
    shown = capsys.readouterr().out
    for name, why in found["missing"].items():
        assert f"| {name} | {why} |" in shown


@LINUX
def test_attention(run: Run) -> None:
    found = run("attention.py", "--lengths", "300", "--tokens", "600", "--heads", "1", "--width", "4", "--rounds", "1")
    assert [len(seconds["electra_lab"]) for seconds in found["seconds"].values()] == [1, 1, 1]


def test_samplers(run: Run) -> None:
    found = run("samplers.py", "--rows", "4", "--vocabulary", "50", "--rounds", "1")
    assert {"electra-pytorch gumbel_sample", "electra_lab gumbel", "electra_lab nucleus"} <= found["seconds"].keys()


def test_a_way_that_fails_is_a_row(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = runpy.run_path(str(FOLDER / "memory.py"))
    case = memory["Case"]("transformer_tiny", 16, 2)

    def growth(case: Any, way: str, threads: int) -> dict[int, float]:
        return {1: 2.0, 3: 4.0} if way == "works" else {}[way]

    monkeypatch.setitem(memory["compare"].__globals__, "growth", growth)
    table, found = memory["compare"](case, ["fails", "works"], 1)
    assert found == {"works": {1: 2.0, 3: 4.0}}
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == ["fails", "works"]
    assert "KeyError" in table


def test_coverage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["coverage.py", "--trials", "1"])
    runpy.run_path(str(FOLDER / "coverage.py"), run_name="__main__")
    tables = capsys.readouterr().out.split("\n\n")
    assert [len(table.strip().splitlines()) for table in tables] == [1 + 48, 1 + 15, 1 + 18]
    assert all(re.search(r"\d+\.\d%$", line) for table in tables for line in table.strip().splitlines()[1:])


@pytest.mark.parametrize("micro", [4, 2])
def test_flops_of_deberta(micro: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative positions are projected once for each micro-batch, and the formula agrees to the FLOP."""
    monkeypatch.setattr(sys, "argv", ["flops.py", "deberta_small", "--rows", "4", "--micro", str(micro)])
    runpy.run_path(str(FOLDER / "flops.py"), run_name="__main__")
    _, formula, counted, difference = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert (formula, difference) == (counted, "+0.000%")


@pytest.mark.slow
def test_flops_of_shipped_experiments() -> None:
    script = runpy.run_path(str(FOLDER / "flops.py"))
    # Logits that the backward pass computes again, and torch's count of grouped convolutions.
    expected = {"objectives/all_tokens_mlm": -0.124, "plugins/light_conv": -0.148}
    for name in script["shipped"]():
        for formula, counted in script["compared"](name, 8, 8):
            assert formula / counted - 1 == pytest.approx(expected.get(name, 0.0), abs=0.012), name


def test_exponents(run: Run) -> None:  # for the scripts' folder on the path
    lengths = runpy.run_path(str(FOLDER / "lengths.py"))
    quadratic = {n: [3.0 * n**2, 5.0 * n**2] for n in (512, 1024, 8192)}
    for slopes in lengths["exponents"](quadratic):
        assert slopes == pytest.approx([2.0, 2.0])
    assert lengths["between"]({512: 1.0, 1024: 2.0}) is None


def test_a_backbone_that_fails_stops_no_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = runpy.run_path(str(FOLDER / "lengths.py"))
    monkeypatch.setitem(lengths["timed"].__globals__["BACKBONES"], "none", ("nowhere", ()))
    seconds, failed = lengths["timed"]({"none": [32], "bert": [32]}, 1, "wall", "cpu")
    assert {name: [*values] for name, values in seconds.items()} == {"none": [], "bert": [32]}
    assert {name: [*values] for name, values in failed.items()} == {"none": [32], "bert": []}


def test_startup(run: Run) -> None:
    found = run("startup.py", "--rounds", "1", "--clock", "processor", "--commands", "python", "electra-lab --version")
    assert found["seconds"].keys() == {"python", "electra-lab --version"}


WAYS = {f"electra_lab {kind}+off" for kind in ("fp32+fused", "bf16+fused", "fp32+products", "bf16+products")}
# Scripts and their arguments, the cases they measure, and further checks of the results.
SLOW: dict[str, tuple[str, str, set[str], Callable[[Any], bool]]] = {
    "choices": ("--experiment bert_small --shapes 16x2 --widths 32 --rounds 1", "seconds", WAYS,
                lambda found: found["rule"].keys() == {"precision", "attention", "compile"}),
    "revisions": ("HEAD --experiment transformer_tiny --rounds 2 --steps 1", "seconds", {"HEAD", "working tree"},
                  lambda found: all(len(values) == 2 and min(values) > 0 for values in found["seconds"].values())),
    "memory": (f"{' '.join(SMALL)} --peers", "megabytes", {"electra_lab fp32"},  # none of them: each takes seconds
               lambda found: all(0 < grown["1"] <= grown["3"] for grown in found["megabytes"].values())),
    "lengths": ("--backbones bert performer --lengths 32 64 --rounds 2 --no-memory", "seconds", {"bert", "performer"},
                lambda found: all(list(values) == ["32", "64"] for values in found["seconds"].values())),
    "checkpoint": (
        "--experiment transformer_tiny --rounds 1 --folder {tmp_path}", "bytes", {"electra_lab", "torch.save"},
        lambda found: 0.5 < found["bytes"]["electra_lab"] / found["bytes"]["torch.save"] < 1.5
        and {"electra_lab", "a training step"} <= found["seconds"].keys()),
    "predicting": ("--rows 40 --rounds 2 --batch-size 8", "seconds", {"predict", "pipeline"},
                   lambda found: (found["equal"], len(found["ratios"])) == (40, 2)),
}  # fmt: skip


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("script", SLOW)
def test_a_longer_script(script: str, run: Run, tmp_path: Path) -> None:
    if script == "revisions" and not (ROOT / ".git").exists():
        pytest.skip("earlier commits are read from the git repository")
    arguments, what, names, also = SLOW[script]
    found = run(f"{script}.py", *arguments.format(tmp_path=tmp_path).split())
    assert names == found[what].keys()
    assert also(found), found
    drawings = [path.read_text(encoding="utf-8").count("<svg") for path in tmp_path.glob("*.svg")]
    assert drawings == [1] * (script == "lengths")


@pytest.mark.parametrize("script", LONGER)
def test_longer_scripts_start(script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Their imports still work; their measurements take minutes."""
    pytest.importorskip("psutil")
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # which data.py sets
    monkeypatch.syspath_prepend(str(FOLDER))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"python benchmarks/{script}.py" in shown
    source = (FOLDER / f"{script}.py").read_text(encoding="utf-8")
    assert ("--device" in shown) == ("given.device" in source), "an option that the script does not read"


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("name", ["modernbert", "deberta"])
def test_encoders(run: Run, tmp_path: Path, name: str) -> None:
    """Both sides have the same weights, in rows with padding and with local layers in blocks."""
    tiny = ("--encoders", name, "--width", "16", "--heads", "2", "--depth", "2", "--vocabulary", "100", "--rounds", "1")
    found = run("encoders.py", *tiny, "--shapes", "300x2")
    assert found["seconds"].keys() == {"transformers", "electra_lab"}
    assert 0 < found["difference"] < 2e-5
    assert found["megabytes"]["electra_lab"] < found["megabytes"]["transformers"]
    (tmp_path / "results.jsonl").unlink()
    found = run("encoders.py", *tiny, "--shapes", "16x2", "--whole")
    assert found["seconds"].keys() == {"usual step", "electra_lab fp32"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return runpy.run_path(str(FOLDER / "gpu.py"))


SCRIPTS = {
    "fails": "print('before'); raise SystemExit('no driver')",
    "hangs": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])",
    "slow": (
        "import json, pathlib, sys; out = pathlib.Path(sys.argv[-1]);"
        "assert sys.argv[1:4] == ['real', '--device', 'cuda'];"
        "line = {'case': 'steps', 'seconds': {'a': [0.002, 0.001, 0.009], 'b': [0.5]}};"
        "line['missing'] = {'c': 'no | compiler'};"
        "(out / 'results.md').write_text('## A table\\n\\n| 1 |\\n');"
        "(out / 'results.jsonl').write_text(json.dumps(line | {'ready after': {'a+full': 7.0, 'b': 1.0}}) + '\\n')"
    ),
}


@pytest.fixture
def measure(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Call gpu.py with a schedule of scripts that fail, hang or write results; returns the lines of gpu.jsonl."""
    schedule = {}
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        limit = 1.0 if name == "hangs" else 20.0
        predictions = {"a, ms": 2.2, "b, ms": 2.2, "c, ms": 1.0}
        script = str(tmp_path / f"{name}.py")
        schedule[name] = gpu["Measurement"](f"It {name}", limit, script, ["real"], ["rehearsed"], predictions)
    for function in ("main", "report", "next_of", "measured"):
        monkeypatch.setitem(gpu[function].__globals__, "SCHEDULE", schedule)

    def call(*arguments: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "out"), *arguments])
        gpu["main"]()
        text = (tmp_path / "out" / "gpu.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    return call


def test_measurements_that_fail_stop_no_others(
    measure: Callable[..., list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = measure("--minutes", "1")
    assert [line["measurement"] for line in lines] == ["fails", "hangs", "slow"]
    assert ["error" in line for line in lines] == [True, True, False]
    assert "no driver" in lines[0]["error"]
    assert lines[1]["seconds"] < 10
    assert lines[2]["predicted"]["a, ms"] == 2.2
    milliseconds = {"a, ms": pytest.approx(2.0), "b, ms": pytest.approx(500.0)}
    assert lines[2]["figures"] == {**milliseconds, "c, ms": "no | compiler", "a+full, s to compile": 7.0}
    page = (tmp_path / "out" / "gpu.md").read_text(encoding="utf-8")
    shown = capsys.readouterr().out
    for row in ("| It slow | a, ms | 2.2 | 2 | 0.91 |", "| It slow | b, ms | 2.2 | 500 | **227.27** |"):
        assert row in page
        assert row in shown
    assert "### A table" in page


def test_another_call_goes_on_where_one_has_ended(
    measure: Callable[..., list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished is not repeated, what failed comes last, and half a line is not read."""
    measure("--minutes", "1", "--only", "fails")
    file = tmp_path / "out" / "gpu.jsonl"
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"measurement": "slow", "figu')
    assert [line["measurement"] for line in measure("--minutes", "1")] == ["fails", "hangs", "slow", "fails"]
    assert [line["measurement"] for line in measure("--minutes", "1", "--only", "slow", "hangs")][4:] == ["hangs"]
    before = file.read_text(encoding="utf-8")
    measure("--minutes", "0.1")  # too little for one of 20 seconds
    assert [
        json.loads(line)["measurement"] for line in file.read_text(encoding="utf-8")[len(before) :].splitlines()
    ] == ["hangs"]


def test_every_command_of_the_schedule_is_understood(gpu: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU and in a rehearsal: a name that is misspelt would cost minutes of a GPU."""
    understood: list[argparse.Namespace] = []
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser) -> None:
        understood.append(parse(parser))
        raise KeyboardInterrupt

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    for measurement in gpu["SCHEDULE"].values():
        for device in ("cuda", "cpu"):
            monkeypatch.setattr(sys, "argv", measurement.command(device, Path("nowhere")))
            with pytest.raises(KeyboardInterrupt):
                runpy.run_path(sys.argv[0], run_name="__main__")
    assert {(options.device, str(options.out)) for options in understood} == {("cuda", "nowhere"), ("cpu", "nowhere")}
    experiments = {options.experiment for options in understood if hasattr(options, "experiment")}
    assert all((ROOT / "experiments" / f"{name}.yaml").exists() for name in experiments)
    hows = {how for options in understood for how in getattr(options, "ours", [])}
    assert {word for how in hows for word in how.split("+")} == {
        "fp32", "bf16", "graph", "layers", "full", "gumbel", "halves", "checkpointing",
    }  # fmt: skip


@pytest.mark.slow
def test_gpu_without_one(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the schedule runs on a CPU, in tiny sizes."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), "--device", "cpu", "--minutes", "90"])
    gpu["main"]()
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["measurement"]: line["error"] for line in lines if "error" in line} == {}
    figures = {line["measurement"]: line["figures"] for line in lines}
    assert figures.keys() == gpu["SCHEDULE"].keys()
    for name in ("bits", "kill"):
        for what, expected in gpu["SCHEDULE"][name].predictions.items():
            assert figures[name][what] == expected
    assert set(figures["equality"].values()) == {"equal"}
    missing = [value for name in ("small", "base", "small layers") for value in figures[name].values()]
    assert all(isinstance(value, float) for value in missing), missing


def test_kernels_are_chosen_before_a_way_is_compiled_or_recorded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = runpy.run_path(str(FOLDER / "_steps.py"))
    enabled: dict[str, bool] = {}

    def of(name: str) -> Callable[..., Any]:
        return lambda *_: enabled.update({name: torch.backends.cuda.cudnn_sdp_enabled()})

    monkeypatch.setitem(ways["make"].__globals__, "ours", of("lab"))
    monkeypatch.setitem(ways["PEERS"], "usual step", of("peer"))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for name in ("usual step bf16+full", "electra_lab bf16+full+graph"):
            ways["make"](ways["Case"]("transformer_tiny", 16, 2), name)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert enabled == {"peer": True, "lab": False}


# Names as torch's profiler gives them.
NAMED = {
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN": "products",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64": "products",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tn_align8>(...)": "products",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::...)": "attention",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(...)": "attention",
    "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(...)>": "casts and copies",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>": "casts and copies",
    "Memcpy DtoD (Device -> Device)": "casts and copies",
    "void at::native::vectorized_elementwise_kernel<4, at::native::BitwiseXorFunctor<long>, ...>": "random numbers",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>": "LayerNorm",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(...)>": "GELU",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ...>>": "sums",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>": "softmax and loss",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimizer",
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>": "embeddings",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>":
        "additions and other arithmetic",
    "triton_poi_fused_add_gelu_3": "compiled",
}  # fmt: skip


def test_kernels_have_kinds(run: Run) -> None:
    script = runpy.run_path(str(FOLDER / "_gpu_graphs.py"))
    assert {name: script["kind_of"](name) for name in NAMED} == NAMED


def crossover_folder(parent: Path, flops: str, differences: dict[str, list[float]]) -> Path:
    """An ablation's folder with a spread of chunking over the seeds, and the differences to `mlm`."""
    folder = parent / flops
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps({"budget": {"flops": float(flops)}}))
    rows = ["variant,seed,status,chunking"]
    for seed in range(5):
        rows.append(f"mlm,{seed},done,{0.8 + 0.01 * seed}")
        rows += [f"{name},{seed},done,{0.8 + 0.01 * seed + values[seed]}" for name, values in differences.items()]
    (folder / "table.csv").write_text("\n".join([*rows, "electra,5,failed,"]) + "\n")
    return folder


def test_crossover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict follows the plan: a corrected paired t test at the largest budget, and slopes by seed."""
    noise = [0.004, -0.001, 0.0, 0.002, -0.005]
    rising = {f"4.0e{13 + k}": [-0.03 - n + k * (0.06 + 2 * n) / 3 for n in noise] for k in range(4)}
    falling = [-0.02 + 2 * n for n in noise]
    folders = [
        crossover_folder(tmp_path, flops, {"electra": values, "electra_correct": falling})
        for flops, values in rising.items()
    ]
    monkeypatch.setattr(sys, "argv", ["crossover.py", *map(str, reversed(folders)), "--out", str(tmp_path / "out")])
    runpy.run_path(str(FOLDER / "crossover.py"), run_name="__main__")
    *table, _, first, second, third = (tmp_path / "out" / "verdict.md").read_text(encoding="utf-8").splitlines()
    assert [line.split(" | ")[:3] for line in table[2:4]] == [
        ["| 4e+13", "`electra`", "5"],
        ["| 4e+13", "`electra_correct`", "5"],
    ]
    p = min(2 * stats.ttest_1samp(rising["4.0e16"], 0).pvalue, 1.0)
    interval = stats.t.interval(0.95, 4, np.mean(rising["4.0e16"]), stats.sem(rising["4.0e16"]))
    assert second.startswith("H2: supported (+0.0300 [{:+.4f}, {:+.4f}], p = {:.2g}".format(*interval, p))
    assert first.startswith("H1: refuted (-0.0200")
    slopes = [(0.06 + 2 * n) / 3 for n in noise]  # over three factors of ten
    interval = stats.t.interval(0.95, 4, np.mean(slopes), stats.sem(slopes))
    assert third.startswith("H3: supported (+0.0200 [{:+.4f}, {:+.4f}]".format(*interval))
    assert (tmp_path / "out" / "curve.svg").stat().st_size > 1000
    script = runpy.run_path(str(FOLDER / "crossover.py"))
    three = [script["Budget"].read(folder) for folder in folders[1:]]
    assert "H3: undecided" in script["verdict"](three)


def test_a_single_seed_has_a_hollow_marker(tmp_path: Path) -> None:
    script = runpy.run_path(str(FOLDER / "crossover.py"))
    folder = crossover_folder(tmp_path, "4.0e13", {"electra": [0.1, 0.2, 0.1, 0.2, 0.1]})
    five = script["Budget"].read(folder)
    one = script["Budget"](4e14, [row for row in five.rows if row["seed"] == "0"])
    figure, axes = pyplot.subplots()
    script["_draw_variant"](axes, [five, one], "electra", "C0", shift=1.0)
    pyplot.close(figure)
    points = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]  # not the caps
    drawn = {line.get_xdata()[0]: line.get_markerfacecolor() for line in points}
    assert drawn == {4e13: "C0", 4e14: "white"}
    [joined] = [line for line in axes.lines if len(line.get_xdata()) == 2]
    assert list(joined.get_ydata()) == pytest.approx([0.14, 0.1])


def test_crossover_is_undecided_without_the_largest_budget(tmp_path: Path) -> None:
    script = runpy.run_path(str(FOLDER / "crossover.py"))
    folder = crossover_folder(tmp_path, "4.0e15", {"electra": [0.1, 0.2, 0.1, 0.2, 0.1]})
    sentences = script["verdict"]([script["Budget"].read(folder)]).splitlines()[-3:]
    assert [line.split(",")[0] for line in sentences] == [f"H{number}: undecided" for number in (1, 2, 3)]
