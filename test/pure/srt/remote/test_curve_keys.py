"""Key files: their modes, what is refused, and addresses that need keys."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from sglang.srt.commands import engine_command, engine_keys_command
from sglang.srt.config.command_line import Parser
from sglang.srt.remote.curve_keys import (
    read_engine_keys,
    read_front_keys,
    verify_address,
    write_keys,
)


def test_keys_are_for_their_owner_alone_and_fit_each_other(tmp_path: Path) -> None:
    engine_file, front_file = write_keys(tmp_path / "deep" / "keys")
    for file in (engine_file, front_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(engine_file.parent.stat().st_mode) == 0o700
    engine, front = read_engine_keys(str(engine_file)), read_front_keys(str(front_file))
    assert engine.fronts == (front.public,)
    assert front.engine == engine.public
    assert len({engine.secret, front.secret, engine.public, front.public}) == 4


def test_files_that_are_there_are_kept(tmp_path: Path) -> None:
    (tmp_path / "front.key").write_text("mine")
    with pytest.raises(FileExistsError, match=r"front\.key is there already"):
        write_keys(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["front.key"]


BAD = {
    "no JSON": (b"secret", "is no key file"),
    "not UTF-8": (b"\xff\xfe", "is no key file"),
    "another object": (b'{"role": "engine"}', "is no key file"),
    "a short key": (
        b'{"role":"front","public":"abc","secret":"abc","engine":"abc"}', "a key of 3 characters",
    ),
    "no Z85": (
        b'{"role":"front","public":"%s","secret":"","engine":""}' % (b"\\u00e9" * 40),
        "a key of 40 characters that is no Z85",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named(name: str, tmp_path: Path) -> None:
    data, reason = BAD[name]
    file = tmp_path / "bad.key"
    file.write_bytes(data)
    file.chmod(0o600)
    with pytest.raises(ValueError, match=reason) as found:
        read_front_keys(str(file))
    assert str(file) in str(found.value)


def test_a_file_of_the_other_end_or_open_to_others_is_refused(tmp_path: Path) -> None:
    engine_file, front_file = write_keys(tmp_path)
    with pytest.raises(ValueError, match=r"has the keys of a front; give engine\.key"):
        read_engine_keys(str(front_file))
    with pytest.raises(ValueError, match=r"has the keys of an engine; give front\.key"):
        read_front_keys(str(engine_file))
    front_file.chmod(0o640)
    with pytest.raises(ValueError, match=r"has mode 0640: others may read it; chmod 600"):
        read_front_keys(str(front_file))


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.1:30100", "ipc:///tmp/x", "tcp://:30100", "tcp://a", "tcp://a:x", "tcp://a:1/b",
     "tcp://a:99999", "tcp://[::1", "http://a:1"],
)  # fmt: skip
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=r"--listen is .*; give tcp://HOST:PORT"):
        verify_address(address, "--listen", None)


def test_other_machines_need_keys(tmp_path: Path) -> None:
    keys = read_engine_keys(str(write_keys(tmp_path)[0]))
    for address in ("tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.1.2.3:1", "tcp://node7:1"):
        verify_address(address, "--listen", keys)
        with pytest.raises(ValueError, match=r"sglang engine-keys DIR.*--curve-keys"):
            verify_address(address, "--listen", None)
    for address in ("tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1"):
        verify_address(address, "--listen", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "tcp://0.0.0.0:30100"], "other machines reach it, and without keys"),
        (["--listen", "30100"], "--listen is '30100'; give tcp://HOST:PORT"),
        (["--curve-keys", "/nowhere/engine.key"], "/nowhere/engine.key"),
        (["--heartbeat-timeout", "0"], "--heartbeat-timeout is 0; it must be from 0.1 to 3600"),
        (["--heartbeat-timeout", "nan"], "--heartbeat-timeout is nan"),
        (["--max-fronts", "0"], "--max-fronts is 0; it must be from 1 to 1024"),
        (["--max-contexts-per-front", "-1"], "--max-contexts-per-front is -1; it must be from 1"),
        (["--page-size", "0"], "--page-size is 0"),
        (["--node-rank", "1", "--nnodes", "2", "--tp-size", "2", "--dist-init-addr", "h:5000"],
         "'sglang engine' is node 0"),
        (["--launcher", "ray"], "--launcher ray starts engines that other machines reach"),
        (["--count", "0"], "--count is 0; it must be from 1 to 1024"),
        (["--cpus-per-rank", "nan"], "--cpus-per-rank is nan; it must be from 0 to 4096"),
        (["--api-key", "x"], "unrecognized arguments: --api-key"),
    ],
)  # fmt: skip
def test_flags_that_cannot_be_end_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="sglang engine")
    engine_command.add_parser_arguments(parser)
    with pytest.raises(SystemExit) as found:
        engine_command.run(parser.parse_args(arguments), parser)
    assert found.value.code == 2
    usage, error = capsys.readouterr().err.strip().split("\n")
    assert usage.startswith("usage:")
    assert message in error


def test_the_command_writes_both_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="sglang engine-keys")
    engine_keys_command.add_parser_arguments(parser)
    arguments = parser.parse_args([str(tmp_path)])
    assert engine_keys_command.run(arguments, parser) == 0
    assert "engine.key: for 'sglang engine --curve-keys'" in capsys.readouterr().out
    assert engine_keys_command.run(arguments, parser) == 1
    assert "is there already" in capsys.readouterr().err
