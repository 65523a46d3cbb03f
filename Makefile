# Everything runs in a virtual environment, which the first call creates from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXPERIMENT ?= experiments/reformer_small.yaml
PICTURES ?= build/pictures
BENCH ?= build/bench
GPU ?= build/gpu

.PHONY: run test test-all log test-cluster test-parallel test-trackers test-extras bench soak scorecard scorecard-peers laws-peers test-report test-wheel test-onnx test-encoders notebooks check format docs pictures site release-check gpu check-cuda clean

# Train the first experiment: about four minutes on two CPU cores.
run: $(VENV)/run.stamp
	$(BIN)/python -m electra_lab run $(EXPERIMENT)
	@echo "To use electra-lab in this shell: source $(CURDIR)/$(BIN)/activate"

# All tests but the slow ones, with linters and types: some minutes on two CPU cores. Many of them start processes, which
# must not compile every file again. A file's tests stay on one worker, where they share what its fixtures have trained.
test: check
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# The slow tests too, which `make test` leaves out: learning on real text, notebooks, benchmarks, environments.
test-all: export ELECTRA_LAB_ALL := 1
test-all: test

# Pages as a browser shows them, on a phone and a desktop, light and dark; screenshots in $(PICTURES). Needs chromium.
test-report: $(VENV)/dev.stamp
	ELECTRA_LAB_PICTURES=$(PICTURES) $(BIN)/python -m pytest tests/test_report_looks.py

# ONNX of every backbone, and with weights in a separate file: about a minute.
test-onnx: $(VENV)/dev.stamp
	ELECTRA_LAB_ONNX=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/electra_lab/export/test_onnx.py

# Every family of the backbone hugging_face under the laws of backbones, and beside transformers: some minutes.
test-encoders: $(VENV)/dev.stamp
	ELECTRA_LAB_ENCODERS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/electra_lab/backbones/test_hugging_face.py \
		tests/electra_lab/pretrained/test_any_encoder.py

# The wheel in a separate environment, away from the repository, with all its dependencies: a few minutes.
test-wheel: $(VENV)/dev.stamp
	ELECTRA_LAB_WHEEL=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_wheel.py -s

# What a release needs: wheel and sdist in build/dist, their metadata, a README that renders, valid files for GitHub and for
# citations, and one version everywhere. TAG is the tag of a release, such as v0.1.0.
release-check: $(VENV)/release.stamp
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist
	$(BIN)/twine check --strict build/dist/*
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	ELECTRA_LAB_TAG=$(TAG) ELECTRA_LAB_WHEEL=1 $(BIN)/python -m pytest tests/test_release.py tests/test_wheel.py

# The notebooks in examples/, on the newest model that `make run` has trained; their outputs are stored in them.
notebooks: $(VENV)/dev.stamp
	ELECTRA_LAB_MODEL=$$(ls -d runs/reformer_small/*/ | tail -n 1) ELECTRA_LAB_NOTEBOOKS=examples \
		ELECTRA_LAB_ALL=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_examples.py -s

# The slowest tests: ablations and builds whose processes are killed repeatedly, and the most expensive compilation.
soak: $(VENV)/dev.stamp
	ELECTRA_LAB_SOAK=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest benchmarks/soak.py tests/electra_lab/data/test_build.py::test_kills_change_nothing \
		tests/electra_lab/training/test_compilation.py -s

# The reliability scorecard in full, about two hours on two idle cores: build/scorecard.md, which docs/reliability.md
# explains. ROWS="01 06" runs some rows; the others stay in the table as they were.
ROWS ?= *
scorecard: $(VENV)/dev.stamp
	ELECTRA_LAB_SCORECARD=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ROWS:%=tests/scorecard/test_row_%*.py)

# Some of its rows with transformers' Trainer and Lightning: build/scorecard_peers.md. PEERS names a Python interpreter
# that has torch, pytest, transformers, accelerate, lightning and jsonargparse; what it lacks is skipped.
PEERS ?= $(BIN)/python
scorecard-peers: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.peers.reliability $(PEERS)

# The laws of masks, labels and draws on other people's trainers, about five minutes: build/laws_peers.md, from which
# docs/laws.md is made. LAWS_PEERS is a folder with clones of microsoft/DeBERTa and richarddwang/electra_pytorch; what it
# lacks is skipped. zeldarose asks for older libraries than the lab, so it is installed there, without them.
LAWS_PEERS ?= build/laws_peers
laws-peers: $(VENV)/dev.stamp
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(LAWS_PEERS)/site \
		zeldarose pytorch-lightning lightning-utilities torchmetrics loguru
	ELECTRA_LAB_LAWS_PEERS=$(LAWS_PEERS) PYTHONPATH=$(LAWS_PEERS)/site TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 \
		$(BIN)/python -m benchmarks.peers.laws

# The cluster launchers on a real Slurm and a real Ray of this machine; Slurm needs root, and
# `apt-get install slurmctld slurmd munge`. About fifteen minutes, most of them waiting.
test-cluster: $(VENV)/clusters.stamp
	ELECTRA_LAB_CLUSTERS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/electra_lab/launchers/test_cluster_*.py \
		tests/electra_lab/parallel/test_cluster_slurm.py

# Training in several processes, with all objectives, and stopped, killed and resumed: about ten minutes.
test-parallel: $(VENV)/dev.stamp
	ELECTRA_LAB_PARALLEL=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/electra_lab/parallel

# Every tracker with its real library: about five minutes.
test-trackers: $(VENV)/trackers.stamp
	ELECTRA_LAB_TRACKERS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/electra_lab/trackers

# The tests of extras that are not light: searches by Optuna, and object stores with moto's server in the place of S3.
test-extras: $(VENV)/extras.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/electra_lab/jobs/sweeps/test_search.py tests/electra_lab/sources/test_remote.py

# Compare everything with its peers, on an idle machine with 16 GB: about 30 minutes on two cores, by estimate. Appends to
# results.jsonl and results.md in $(BENCH), and draws lengths.svg there. docs/performance.md has the results of one machine.
bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/step.py --length 128 --batch 16 --ours fp32+temperature fp32+gumbel --out $(BENCH)
	$(BIN)/python benchmarks/step.py --length 512 --batch 4 --out $(BENCH)
	$(BIN)/python benchmarks/step.py --experiment electra_base --length 128 --batch 8 --rounds 3 --out $(BENCH)
	for pair in reformer_small performer_small; do \
		$(BIN)/python benchmarks/step.py --experiment $$pair --length 512 --batch 4 --out $(BENCH) && \
		$(BIN)/python benchmarks/memory.py --experiment $$pair --length 512 --batch 4 --out $(BENCH) || exit; \
	done
	for tiny in transformer_tiny reformer_small; do \
		$(BIN)/python benchmarks/step.py --experiment $$tiny --ours fp32+gumbel --rounds 15 --out $(BENCH) && \
		$(BIN)/python benchmarks/memory.py --experiment $$tiny --ours fp32+gumbel --out $(BENCH) || exit; \
	done
	$(BIN)/python benchmarks/memory.py --length 128 --batch 16 --out $(BENCH)
	$(BIN)/python benchmarks/memory.py --length 512 --batch 4 --out $(BENCH)
	$(BIN)/python benchmarks/memory.py --experiment electra_base --length 128 --batch 8 --out $(BENCH)
	$(BIN)/python benchmarks/samplers.py --out $(BENCH)
	$(BIN)/python benchmarks/startup.py --out $(BENCH)
	$(BIN)/python benchmarks/checkpoint.py --out $(BENCH)
	$(BIN)/python benchmarks/lengths.py --out $(BENCH)

# Measure on a GPU what docs/performance.md calculates: 9.5 minutes a call, which goes on where the one before has ended.
# Tables for that page are in $(GPU)/gpu.md. constraints.txt pins the build of torch for CPUs; one for CUDA:
# .venv/bin/pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130, or what pytorch.org
# names for your driver.
gpu: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/gpu.py --out $(GPU)

# Devices and waits of the host without a GPU, on tensors that only have shapes: a few minutes. They need torch with CUDA,
# some 5 GB, in a separate environment.
CUDA_VENV := .venv-cuda
CUDA_TORCH ?= torch==2.11.0
check-cuda: $(CUDA_VENV)/run.stamp
	OMP_NUM_THREADS=1 $(CUDA_VENV)/bin/python -m pytest tests/test_cuda_without_gpu.py

# Record the results of the shipped experiments in experiments/LOG.md: two hours on one core.
log: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/shipped.py

# The pages of all config keys, from the schema; docs/faithful.md's table, from docs/official.yaml; the pages of the Python
# API, from docstrings; the drawings of docs/family.md and docs/own-text.md.
docs: $(VENV)/dev.stamp
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/api.py
	$(BIN)/python docs/pictures.py

# The pictures of README and docs/pages.md: the newest run of `make run`, its text, a fine-tuning of it, a short ablation, and
# the first cells of its variants. Needs chromium.
PICTURED ?= build/pictured
pictures: $(VENV)/dev.stamp
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/pictures.py run $$(ls -d runs/reformer_small/*/ | tail -n 1)
	$(BIN)/electra-lab prepare experiments/reformer_small.yaml --inspect
	$(BIN)/python docs/pictures.py data $$(ls -t runs/.store/*.html | head -n 1)
	OMP_NUM_THREADS=1 $(BIN)/electra-lab ablate experiments/ablations/generator_size.yaml --out $(PICTURED)/ablation \
		--set "measure=[{type: pretraining}]" --set "vary={generator.scale: [0.125, 0.25, 0.5]}" --set budget.flops=4.0e11
	$(BIN)/python docs/pictures.py ablation $(PICTURED)/ablation
	cd $(PICTURED)/ablation/cells && $(CURDIR)/$(BIN)/electra-lab compare $$(ls -d *-s0-*) --html ../compare.html
	$(BIN)/python docs/pictures.py comparison $(PICTURED)/ablation/compare.html
	$(BIN)/electra-lab finetune experiments/downstream/docstring_origin.yaml --out $(PICTURED)/finetuning --set "seeds=[0, 1, 2]" \
		--model $$(ls -d runs/reformer_small/*/ | tail -n 1) --set train.learning_rate=4.0e-3 --set train.layer_decay=1.0
	$(BIN)/python docs/pictures.py finetuning $(PICTURED)/finetuning

# The site from docs/, in build/site; broken links and anchors are errors.
site: $(VENV)/dev.stamp
	$(BIN)/zensical build --strict

# Style and types.
check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(CUDA_VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info

$(VENV)/python.stamp:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "electra_lab needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/run.stamp: $(VENV)/python.stamp pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# electra-pytorch and mlm-pytorch are what the property tests must catch; what they depend on no longer builds. The last
# two are oracles and peers, of which the tests and benchmarks need less than they install.
$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps electra-pytorch mlm-pytorch minicons txtai
	touch $@

$(CUDA_VENV)/run.stamp: $(VENV)/python.stamp pyproject.toml
	$(BIN)/python -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/pip install --quiet --disable-pip-version-check $(CUDA_TORCH) -e '.[hugging-face]' \
		pytest pytest-xdist hypothesis beartype
	touch $@

$(VENV)/trackers.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tensorboard,wandb,mlflow,trackio]'
	touch $@

$(VENV)/extras.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[search,remote]' 'moto[server]'
	touch $@

$(VENV)/release.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt build twine check-jsonschema
	touch $@

$(VENV)/clusters.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[clusters]'
	touch $@
