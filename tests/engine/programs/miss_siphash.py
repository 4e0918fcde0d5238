"""Ask for a key where OpenSSL is missing, or allows FIPS's ciphers alone, and print the refusal: ``missing|fips``."""

import ctypes
import sys

from netoffload.engine import authentication
from netoffload.engine.authentication import Authenticator, is_on
from netoffload.errors import SystemRefusedError

if sys.argv[1] == "missing":
    vars(authentication)["SONAME"] = "libcrypto.so.none"
    assert not is_on(Authenticator(None).words)
else:
    assert ctypes.CDLL("libcrypto.so.3").EVP_set_default_properties(None, b"fips=yes") == 1
try:
    Authenticator(bytes(32))
except SystemRefusedError as error:
    print(type(error).__name__, error.exit_code, error)
