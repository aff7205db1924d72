"""`ersac report --serve`: what is refused, with raw sockets, and that it follows its runs."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from ersac.report import server
from ersac.runs import run_dir
from ersac.runs.disk import DiskError


@pytest.fixture(scope="module")
def port(runs, serve) -> Iterator[int]:
    with serve([runs.home]) as number:
        yield number


def exchange(port: int, request: str) -> tuple[int, str]:
    """The status and the whole text of the response to the bytes of a request."""
    with socket.create_connection((server.ADDRESS, port), timeout=20) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        text = b""
        while part := connection.recv(1 << 16):
            text += part
    return int(text.split()[1]), text.decode()


def request_text(port: int, line: str = "GET / HTTP/1.1", host: str | None = None) -> str:
    host = f"127.0.0.1:{port}" if host is None else host
    return f"{line}\r\nHost: {host}\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_names_of_this_machine_are_served(port, name):
    status, text = exchange(port, request_text(port, host=f"{name}:{port}"))
    assert status == 200
    assert "<title>5 runs" in text
    assert "connect-src 'self'" in text
    assert "X-Frame-Options: DENY" in text


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "example.com:{port}",
        "localhost",
        "127.0.0.1:1",
        "127.0.0.1.example.com:{port}",
    ],
)
def test_foreign_hosts_are_refused(port, host):
    status, text = exchange(port, request_text(port, host=host.format(port=port)))
    assert status == 421
    assert "runs" not in text


def test_requests_without_a_host_or_with_two_are_refused(port):
    assert exchange(port, "GET / HTTP/1.0\r\n\r\n")[0] == 421
    host = f"Host: localhost:{port}\r\n"
    assert exchange(port, f"GET / HTTP/1.1\r\n{host}{host}\r\n")[0] == 421


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"]
)
def test_methods_other_than_get_and_head_are_refused(port, method):
    status, text = exchange(port, request_text(port, f"{method} / HTTP/1.1"))
    assert status in (405, 501)
    assert "<title>" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/content.json/../settings.json",
        "/first/settings.json",
        "http://example.com/",
        "/?",
        "*",
    ],
)
def test_no_path_names_a_file(port, path):
    status, text = exchange(port, request_text(port, f"GET {path} HTTP/1.1"))
    assert (status, text.splitlines()[-1]) == (404, "404 Not Found")


def test_head_sends_no_body(port):
    status, text = exchange(port, request_text(port, "HEAD / HTTP/1.1"))
    assert status == 200
    assert text.endswith("\r\n\r\n")


def test_the_content_is_sent_again_only_when_a_run_has_changed(runs, serve, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SCAN_SECONDS", 0.0)
    run = tmp_path / "run"
    shutil.copytree(runs.first, run)
    with serve([run]) as number:
        connection = HTTPConnection(server.ADDRESS, number, timeout=20)

        def get(tag: str | None) -> tuple[int, str | None, bytes]:
            connection.request("GET", "/content.json", headers={"If-None-Match": tag or ""})
            response = connection.getresponse()
            return response.status, response.getheader("ETag"), response.read()

        status, tag, body = get(None)
        assert (status, "ended" in json.loads(body)["tables"]["details"]) == (200, True)
        assert get(tag) == (304, tag, b"")
        (run / run_dir.SUMMARY).unlink()
        status, new_tag, body = get(tag)
        assert (status, new_tag == tag) == (200, False)
        assert "stopped" in json.loads(body)["tables"]["details"]
        shutil.rmtree(run)
        assert get(tag)[0] == 500
        connection.close()


def test_a_client_that_goes_away_leaves_no_trace(port, capfd):
    connection = socket.create_connection((server.ADDRESS, port), timeout=20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sendall(request_text(port).encode())
    connection.close()  # at once: the server's next read or write fails
    assert exchange(port, request_text(port))[0] == 200
    assert capfd.readouterr().err == ""


def test_a_port_in_use_is_one_line(runs, port):
    with pytest.raises(DiskError, match="--port 0 takes one that is free"):
        server.make_server(lambda: [], port)


def test_ctrl_c_ends_the_server_with_its_exit_code(runs):
    argv = ["report", str(runs.first), "--serve", "--port", "0", "--json", "--quiet"]
    with subprocess.Popen(
        [sys.executable, "-m", "ersac", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        number = int(url.rstrip("/").rpartition(":")[2])
        assert exchange(number, request_text(number))[0] == 200
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, "", "ersac: interrupted\n")
