"""Runs in the official client's environment: the model registry in the Python SDK. Prints one JSON object.

Arguments: the uuids of two checkpoints, a folder to download to.
"""

import json
import sys

from determined.common.api import errors
from determined.experimental import client

first, second, folder = sys.argv[1:]
client.login()
model = client.create_model("from the SDK", "a description", {"pixels": 64})
empty = model.get_version()
version = model.register_version(first)
model.register_version(second)
latest = model.get_version()
one = model.get_version(1)
assert latest is not None
assert one is not None
one.set_name("the first")
one.set_notes("noted")
one.reload()
try:
    one.checkpoint.delete()
    refused = ""
except errors.APIException as e:
    refused = str(e)
path = one.checkpoint.download(folder)
numbers = [v.model_version for v in model.list_versions()]
model.add_metadata({"classes": 10})
model.remove_metadata(["pixels"])
model.set_description("another")
model.set_labels(["b", "a"])
model.archive()
model.reload()
archived = model.archived
model.unarchive()
again = client.get_model("from the SDK")
found = {
    "names": [m.name for m in client.list_models()],
    "by_part": [m.name for m in client.list_models(name="the SDK")],
    "by_id": client.get_model(again.model_id).name,
    "labels": client.get_model_labels(),
}
latest.delete()
left = [v.model_version for v in again.list_versions()]
again.delete()
print(
    json.dumps(
        {
            "empty": empty is None,
            "version": version.model_version,
            "of": [version.model_name, version.model_id == model.model_id],
            "latest": [latest.model_version, latest.checkpoint.uuid],
            "one": [one.name, one.notes, one.checkpoint.uuid],
            "refused": refused,
            "path": path,
            "numbers": sorted(numbers),
            "edited": [again.description, again.metadata, sorted(again.labels), archived, again.archived],
            "owner": again.username,
            "found": found,
            "left": left,
            "gone": client.list_models() == [],
        }
    )
)
