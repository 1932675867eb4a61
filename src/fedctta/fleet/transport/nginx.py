"""nginx in place of the gate."""

from __future__ import annotations

from pathlib import Path

from fedctta.fleet.transport.limits import Limits


def nginx_config(host: str, port: int, upstream: str, keys: Path) -> str:
    """Return a server block for nginx that lets pass what the gate does, within bounds like those of `Limits`.

    nginx cannot verify a node's signature, only that there is one; the SuperLink verifies it.
    """
    limits = Limits()
    return f"""\
# Only what nodes need; the SuperLink itself listens on loopback. For the `http` block of nginx.
limit_conn_zone $binary_remote_addr zone=fedctta_address:1m;
limit_conn_zone $server_name zone=fedctta_all:1m;
limit_req_zone $binary_remote_addr zone=fedctta_requests:1m rate=50r/s;

server {{
    listen {host}:{port} ssl;
    ssl_certificate     {keys / "server.crt"};
    ssl_certificate_key {keys / "server.key"};
    ssl_protocols       TLSv1.2 TLSv1.3;
    client_max_body_size {limits.body_bytes >> 20}m;
    client_header_timeout {limits.head_seconds:.0f}s;
    client_body_timeout {limits.slack_seconds:.0f}s;
    keepalive_timeout {limits.idle_seconds:.0f}s;
    send_timeout {limits.slack_seconds:.0f}s;
    reset_timedout_connection on;
    limit_conn fedctta_address 64;
    limit_conn fedctta_all 1024;
    limit_req zone=fedctta_requests burst=200 nodelay;

    location ~ "^/v1/fleet/[a-z]+(-[a-z]+)*$" {{
        limit_except POST {{ deny all; }}
        if ($http_flwr_signature = "") {{ return 401; }}
        if ($http_flwr_public_key = "") {{ return 401; }}
        proxy_pass https://{upstream};
        proxy_http_version 1.1;
        proxy_ssl_trusted_certificate {keys / "ca.crt"};
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_read_timeout 120s;
        proxy_request_buffering on;
        # After a 500 a node sends no heartbeat ever again, after a 502 one of Flower 1.40 ends; a 503 it survives.
        proxy_intercept_errors on;
        error_page 500 502 =503 @again;
    }}
    location @again {{ return 503; }}
    location / {{ return 404; }}
}}
"""
