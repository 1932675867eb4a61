"""The configuration of nginx says what the gate does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fedctta.fleet.transport.nginx import nginx_config


def test_it_lets_pass_what_the_gate_does():
    text = nginx_config("0.0.0.0", 9092, "127.0.0.1:8080", Path("/keys"))
    assert "listen 0.0.0.0:9092 ssl;" in text
    assert "location / { return 404; }" in text
    assert "proxy_pass https://127.0.0.1:8080;" in text
    assert text.count("{") == text.count("}")
    assert "client_max_body_size 64m;" in text
    assert 'if ($http_flwr_signature = "") { return 401; }' in text
    assert "proxy_request_buffering on;" in text  # the SuperLink hears of whole requests only
    assert text.count("limit_conn ") == 2


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_nginx_understands_it(tmp_path):
    pytest.importorskip("cryptography")
    from fedctta.fleet.transport.certificates import make_keys

    make_keys(tmp_path / "keys", [], 1)
    (tmp_path / "fleet.conf").write_text(nginx_config("127.0.0.1", 9092, "127.0.0.1:8080", tmp_path / "keys"))
    main = f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{ include {tmp_path}/fleet.conf; }}\n"
    (tmp_path / "nginx.conf").write_text(main)
    done = subprocess.run(["nginx", "-t", "-c", str(tmp_path / "nginx.conf")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
