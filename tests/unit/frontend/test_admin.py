"""Who may reach AdminService."""

import pytest

from frontend_svc.admin import is_private


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("unix:/run/x.sock", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_a_private_address(host: str, private: bool) -> None:
    assert is_private(host) is private
