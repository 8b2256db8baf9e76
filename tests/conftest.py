"""What every test starts from."""

import os

# A developer's own settings are not the tests'. Before collection, because parametrisation may already read a default.
for _name in [name for name in os.environ if name.startswith("PACKRELAY_")]:
    del os.environ[_name]
