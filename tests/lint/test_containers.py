"""Rules for Dockerfile and compose file, since no Docker engine runs where they are checked."""

from pathlib import Path

import dockerfile
import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]


def _stages() -> dict[str, list[dockerfile.Command]]:
    stages: dict[str, list[dockerfile.Command]] = {}
    for command in dockerfile.parse_file(str(ROOT / "Dockerfile")):
        if command.cmd == "FROM":
            stages[command.value[2]] = []
        if stages:
            list(stages.values())[-1].append(command)
    return stages


STAGES = _stages()
TARGETS = ["scheduler", "frontend", "executor-cpu", "executor-cuda"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs_its_service_as_nobody_special(target: str) -> None:
    commands = STAGES[target]
    *_, user, entry = [c for c in commands if c.cmd in ("USER", "ENTRYPOINT")]
    assert (user.cmd, user.value) == ("USER", ("10001:10001",))
    assert entry.json, "the shell form would swallow signals"
    role = target.split("-")[0]
    assert entry.value == ("python", "-P", "-m", f"{role}_svc")


@pytest.mark.parametrize("target", ["scheduler", "frontend"])
def test_targets_without_torch(target: str) -> None:
    said = " ".join(word for command in STAGES[target] for word in command.value)
    assert "torch" not in said
    assert f"[{target}]" in said


def test_no_image_floats() -> None:
    image = next(c for c in dockerfile.parse_file(str(ROOT / "Dockerfile")) if c.cmd == "ARG")
    _, _, tag = image.value[0].partition("=")[2].partition(":")
    assert tag
    assert tag != "latest"


def test_the_wheel_is_made_of_every_package() -> None:
    copied = {word for c in STAGES["wheel"] if c.cmd == "COPY" for word in c.value}
    packages = {path.parent.name for path in ROOT.glob("svc_*/__init__.py")}
    packages |= {path.parent.name for path in ROOT.glob("*_svc/__init__.py")}
    clients = {"client/twostroke_client", "client/twostroke_command"}
    assert packages | clients | {"protos", "pyproject.toml"} <= copied
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if "!" in line}
    assert copied - {"./"} == kept


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_can_be_checked_stopped_and_restarted(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert int(service["stop_grace_period"].removesuffix("s")) > 30, "longer than a drain"
    assert service["read_only"] is True
    assert "run:/run/twostroke" in service["volumes"]
    assert service["build"]["target"].split("-")[0] == name


def test_they_start_in_the_order_of_health() -> None:
    healthy = {"condition": "service_healthy"}
    assert SERVICES["frontend"]["depends_on"] == {"scheduler": healthy}
    assert SERVICES["scheduler"]["depends_on"] == {"executor": healthy}
    assert "depends_on" not in SERVICES["executor"]


def test_the_model_lies_at_one_path_for_both_who_read_it() -> None:
    paths = {
        name: volume.split(":")[1]
        for name, service in SERVICES.items()
        for volume in service["volumes"]
        if volume.startswith("models:")
    }
    assert paths == {"executor": "/var/cache/twostroke", "frontend": "/var/cache/twostroke"}
    assert SERVICES["executor"]["environment"]["XDG_CACHE_HOME"] == "/var/cache"


def test_the_runtime_directory_is_private_tmpfs_of_the_images_user() -> None:
    options = COMPOSE["volumes"]["run"]["driver_opts"]
    assert (options["type"], options["device"]) == ("tmpfs", "tmpfs")
    assert "mode=0700,uid=10001,gid=10001" in options["o"]
