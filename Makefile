# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own environment in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
ALGORITHM ?= steffle
ENGINE ?= one-process

NAME ?= fair-plugin

.PHONY: demo test test-full flower nvflare soak experiments bench lint docs package clean

# ENGINE=flower and ENGINE=nvflare run in the environment that has the engine.
ifneq ($(filter flower nvflare,$(ENGINE)),)
demo: $(VENV)-$(ENGINE)/.done
	PYTHONPATH=$(CURDIR) $(VENV)-$(ENGINE)/bin/python -c "from privfair.cli import main; main()" \
	  demo --algorithm $(ALGORITHM) --engine $(ENGINE) --out demo
else
demo: $(VENV)/.with-demo
	$(BIN)/privfair demo --algorithm $(ALGORITHM) --engine $(ENGINE) --out demo
endif

test: $(VENV)/.with-test
	$(PYTEST) -n 2

# Every test once: the default ones, which alone must reach the coverage of pyproject.toml, then the slow ones.
test-full: $(VENV)/.with-test
	$(PYTEST) -n 2 --cov
	$(PYTEST) -n 2 -m slow

# Flower wants older versions of some packages: an environment of its own, laid over the tested one; so has NVFlare.
flower: $(VENV)-flower/.done
nvflare: $(VENV)-nvflare/.done

# Does anything ever fail by chance? The default suite 5 times, the tests of true noise 200 times.
soak: $(VENV)/.with-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak

# One page of docs/experiments again; NAME=fair-plugin runs only the splits whose rows are missing.
experiments: $(VENV)/.with-test
	PYTHONPATH=docs/experiments $(BIN)/python docs/experiments/run_$(subst -,_,$(NAME)).py

bench: $(VENV)/.with-bench
	$(BIN)/python -m tests.benchmarks

lint: $(VENV)/.with-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site in build/site, offline; a broken link is an error.
docs: $(VENV)/.with-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Source archive, wheel, bill of materials and hashes in dist/, checked as a package index checks them.
package: $(VENV)/.with-test
	.ci/package $(BIN)/python

clean:
	rm -rf $(VENV) $(VENV)-flower $(VENV)-nvflare demo build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)-flower/.done: ENGINE_PACKAGE := flwr>=1.41,<1.42
$(VENV)-nvflare/.done: ENGINE_PACKAGE := nvflare>=2.9,<2.10
$(VENV)-%/.done: $(VENV)/.with-test constraints-%.txt
	rm -rf $(@D)
	$(BIN)/python -m venv --without-pip $(@D)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  $$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tested.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-$*.txt "$(ENGINE_PACKAGE)"
	@touch $@

$(VENV)/.with-demo: EXTRAS := train,data,plot,audit
$(VENV)/.with-test: EXTRAS := test
$(VENV)/.with-bench: EXTRAS := test,bench
$(VENV)/.with-demo $(VENV)/.with-test $(VENV)/.with-bench: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing privfair[$(EXTRAS)] into $(VENV) (pinned by constraints.txt)"
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(PIP) -e ".[$(EXTRAS)]"
	@touch $@
