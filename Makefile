# SPDX-License-Identifier: Apache-2.0
# Short names for the scripts; nothing here that the scripts cannot do without make.
.PHONY: run test test-kube lint format proto bench docs site locks install uninstall image kind-up kind-test kind-down vm-up vm-ssh vm-test vm-down vm-arm64 clean
BIN := .venv/bin

run:
	scripts/run

test:
	scripts/test

test-kube:
	$(BIN)/python -m pytest -q -m kube

lint:
	scripts/prepare
	scripts/lint

format:
	$(BIN)/ruff format -q .
	$(BIN)/ruff check --fix -q .

proto:
	$(BIN)/python scripts/stubs.py

bench:
	scripts/prepare
	$(BIN)/python -m bench

docs:
	$(BIN)/python -m scripts.docs
	$(BIN)/python -m scripts.rules --write
	$(BIN)/python -m scripts.monitoring

site:
	scripts/site

locks:
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --upgrade --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate pyproject.toml -o scripts/locks/runtime.lock
	$(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --extra systemd pyproject.toml -o scripts/locks/systemd.lock -c scripts/locks/runtime.lock
	$(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --extra otel --extra systemd pyproject.toml -o scripts/locks/otel.lock -c scripts/locks/runtime.lock
	$(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --extra dev pyproject.toml -o scripts/locks/dev.lock -c scripts/locks/runtime.lock
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' | \
	$(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate - -o scripts/locks/build.lock -c scripts/locks/dev.lock
	echo mkdocs-material | $(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate - -o scripts/locks/site.lock

install:
	scripts/install

uninstall:
	scripts/install --remove

image:
	scripts/image

kind-up:
	scripts/kind up

kind-test:
	scripts/kind test

kind-down:
	scripts/kind down

vm-up:
	KEPD_VM_RELEASE=$(or $(RELEASE),12) scripts/vm up

vm-ssh:
	scripts/vm ssh

vm-test:
	KEPD_VM_ALL=1 KEPD_VM_RELEASE=$(or $(RELEASE),12) scripts/vm test

vm-down:
	scripts/vm down

# By hand: an hour and more in emulation.
vm-arm64:
	scripts/vm --arch arm64 up && { scripts/vm suite; code=$$?; scripts/vm down; exit $$code; }

clean:
	rm -rf .venv agent/wire dist build
