"""`python -m detlab_master.schema`: print the JSON Schema of experiment configurations."""

import json

from detlab_master.core.expconf.json_schema import json_schema


def text() -> str:
    """As it is checked in: docs/experiment-config.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
