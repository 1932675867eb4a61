"""Who is who is read again when it changes; without keys every name is believed."""

from __future__ import annotations

from fedctta.fleet.server.bindings import FILE, Bindings, read_certificate, write_bindings


def test_names_go_with_nodes(tmp_path):
    bindings = Bindings(tmp_path)
    assert bindings.names is None
    assert bindings.allows(7)
    write_bindings(tmp_path, {7: ("device-0", "ab")})
    assert (bindings.allows(7), bindings.allows(8)) == (True, False)
    assert (bindings.name_of(7), bindings.name_of(8)) == ("device-0", None)
    write_bindings(tmp_path, {})
    assert not bindings.allows(7)
    write_bindings(tmp_path, None)
    assert bindings.allows(7)


def test_a_certificate_that_nobody_told_of_is_none(tmp_path):
    assert read_certificate(tmp_path) is None
    write_bindings(tmp_path, {})
    assert read_certificate(tmp_path) is None
    (tmp_path / FILE).write_text('{"certificate": {"file": "a", "ends"')
    assert read_certificate(tmp_path) is None
