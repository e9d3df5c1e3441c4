"""A bucket of S3, or of a service that speaks its protocol: requests, their retries, and errors for people.

Keys and credentials appear in no text. The client library is loaded when a bucket is opened, and not before.
"""

import base64
import contextlib
import hashlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

from determined.errors import StorageError

T = TypeVar("T")

CONNECTIONS = 8
_CONNECT_SECONDS, _READ_SECONDS = 10, 60
_ATTEMPTS = 3  # of one request, by the library
_OF_LISTINGS = {"Name", "IsTruncated", "KeyCount", "Contents"}  # each service's have some of these
_DELETED_AT_ONCE = 1000  # what the protocol takes
_PATIENCE_SECONDS = 300.0
# Of a server that has a bad moment; the library knows them too, and gives up sooner.
_PASSING = {"500", "502", "503", "504", "InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout"}
_REFUSED = {
    "AccessDenied",
    "403",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
}


@dataclass(frozen=True)
class Found:
    """An object of the bucket."""

    name: str  # without the bucket's prefix
    size: int  # bytes
    etag: str
    changed: float  # seconds since 1970


@dataclass(frozen=True)
class Multipart:
    """An object that is being sent in parts: `parts` are there already, by number, with the MD5 of each."""

    name: str
    upload_id: str
    parts: Mapping[int, str]


class Bucket:
    """Objects under a prefix. Every method raises StorageError.

    Args:
        client: boto3's, for S3.
        patience: for how long `patiently` repeats a request while the service is away, in seconds.
    """

    def __init__(
        self, client: Any, bucket: str, prefix: str = "", *, patience: float = _PATIENCE_SECONDS
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._patience = patience

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, patience: float = _PATIENCE_SECONDS) -> "Bucket":
        """The bucket of a `checkpoint_storage` config of type s3."""
        bucket, endpoint = config.get("bucket"), config.get("endpoint_url") or None
        prefix = str(config.get("prefix") or "").strip("/")
        keys = (config.get("access_key") or None, config.get("secret_key") or None)
        if not isinstance(bucket, str) or not bucket or "/" in bucket:
            raise StorageError(
                f"checkpoint_storage.bucket is {bucket!r}: type s3 needs the name of a bucket there"
            )
        if ".." in prefix.split("/"):
            raise StorageError(f"checkpoint_storage.prefix {prefix!r} must not contain '..'")
        if not all(key is None or isinstance(key, str) for key in keys):
            raise StorageError("checkpoint_storage.access_key and secret_key must be texts")
        if (keys[0] is None) != (keys[1] is None):
            raise StorageError(
                "checkpoint_storage has one of access_key and secret_key: it needs both or neither"
            )
        if endpoint is not None and not str(endpoint).startswith(("http://", "https://")):
            raise StorageError(
                f"checkpoint_storage.endpoint_url is {endpoint!r}: expected http://HOST:PORT or https://HOST"
            )
        if endpoint is not None and "@" in str(endpoint):
            # It would be shown in errors.
            raise StorageError(
                "checkpoint_storage.endpoint_url has a password in it: give access_key and secret_key"
            )
        try:
            import boto3.session
            import botocore.exceptions
            from botocore.config import Config
        except ImportError:
            raise StorageError(
                "checkpoint_storage.type is 's3', and boto3 is not installed here: pip install 'detlab[s3]'"
            ) from None
        for library in ("boto3", "botocore"):
            # Its notes for debugging show headers with signatures, and the content of small objects.
            if logging.getLogger(library).level == logging.NOTSET:
                logging.getLogger(library).setLevel(logging.INFO)
        options = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"mode": "standard", "max_attempts": _ATTEMPTS},
            max_pool_connections=2 * CONNECTIONS,
            tcp_keepalive=True,
            # Services other than Amazon's know Content-MD5, which we send; the newer checksums many do not.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if endpoint else None,
        )
        try:
            client = boto3.session.Session().client(
                "s3",
                endpoint_url=endpoint,
                aws_access_key_id=keys[0],
                aws_secret_access_key=keys[1],
                config=options,
            )
        except (botocore.exceptions.BotoCoreError, ValueError) as e:
            raise StorageError(f"the checkpoint storage s3://{bucket} cannot be used: {e}") from e
        return cls(client, bucket, prefix, patience=patience)

    def __repr__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def patiently(self, request: Callable[[], T], stopped: threading.Event) -> T:
        """Repeat a request of a transfer that has begun for as long as the service is away."""
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_passes),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=15),
            stop=tenacity.stop_after_delay(self._patience) | tenacity.stop_when_event_set(stopped),
            sleep=tenacity.sleep_using_event(stopped),
            reraise=True,
        )
        with self.explained():
            return again(request)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as e:
            raise StorageError(f"{self}: {_explain(e)}") from e
        except (BotoCoreError, OSError) as e:
            raise StorageError(f"{self} cannot be reached: {e}") from e

    def list(self, start: str) -> Iterator[Found]:
        """The objects whose names start so, in the order of their names."""
        pages = self._client.get_paginator("list_objects_v2")
        with self.explained():
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + start):
                if page.keys().isdisjoint(_OF_LISTINGS):
                    # A console, a proxy's own page: to the library an empty listing, by which checkpoints would be gone.
                    raise StorageError(
                        f"{self}: what answers at {self._client.meta.endpoint_url} is no service of S3's kind; check"
                        " checkpoint_storage.endpoint_url (the port of a web console is not the service's)"
                    )
                for row in page.get("Contents", ()):
                    name = row["Key"].removeprefix(self._prefix)
                    yield Found(
                        name, row["Size"], row.get("ETag", "").strip('"'), row["LastModified"].timestamp()
                    )

    def open(self, found: Found, offset: int = 0, length: int | None = None) -> Any:
        """The bytes of an object, or some of them, as a stream to read and close; not explained.

        Raises what the library raises when the object is not the same any more.
        """
        last = found.size if length is None else offset + length
        answer = self._client.get_object(
            Bucket=self._bucket,
            Key=self._prefix + found.name,
            Range=f"bytes={offset}-{last - 1}",
            **({"IfMatch": f'"{found.etag}"'} if found.etag else {}),
        )
        return answer["Body"]

    def read_into(self, found: Found, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from there on; not explained."""
        with contextlib.closing(self.open(found, offset, len(buffer))) as body:
            done = 0
            while done < len(buffer):
                count = body.readinto(buffer[done:])
                if not count:
                    raise ConnectionError(f"{found.name} ended after {offset + done} of {found.size} bytes")
                done += count

    def read(self, name: str) -> bytes | None:
        """The content of a small object; None where there is none."""
        from botocore.exceptions import ClientError

        with self.explained():
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            except ClientError as e:
                if _code(e) in ("NoSuchKey", "404"):
                    return None
                raise
            with contextlib.closing(answer["Body"]) as body:
                return bytes(body.read())

    def put(self, name: str, content: bytes | bytearray) -> None:
        """Write a whole object; not explained."""
        self._client.put_object(
            Bucket=self._bucket, Key=self._prefix + name, Body=content, ContentMD5=_base64(md5(content))
        )

    def begin(self, name: str) -> Multipart:
        """Begin to send an object in parts; not explained."""
        answer = self._client.create_multipart_upload(Bucket=self._bucket, Key=self._prefix + name)
        return Multipart(name, answer["UploadId"], {})

    def put_part(self, upload: Multipart, number: int, content: bytes | bytearray) -> str:
        """Send a part; parts count from 1. Not explained. Returns its tag."""
        answer = self._client.upload_part(
            Bucket=self._bucket,
            Key=self._prefix + upload.name,
            UploadId=upload.upload_id,
            PartNumber=number,
            Body=content,
            ContentMD5=_base64(md5(content)),
        )
        return str(answer["ETag"])

    def finish(self, upload: Multipart, tags: Sequence[str]) -> None:
        """Make one object of all parts; not explained. Repeating it is safe."""
        from botocore.exceptions import ClientError

        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, start=1)]
        try:
            self._client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=self._prefix + upload.name,
                UploadId=upload.upload_id,
                MultipartUpload={"Parts": parts},
            )
        except ClientError as e:
            # It was done already, and the answer got lost: then the object is there.
            if _code(e) != "NoSuchUpload":
                raise
            self._client.head_object(Bucket=self._bucket, Key=self._prefix + upload.name)

    def unfinished(self, start: str) -> Iterator[Multipart]:
        """The objects whose names start so and that somebody has begun to send in parts.

        Nothing, where the service does not know the question or does not answer it to us.
        """
        from botocore.exceptions import ClientError

        pages, parts = (self._client.get_paginator(name) for name in ("list_multipart_uploads", "list_parts"))
        place = {"Bucket": self._bucket}
        with self.explained(), contextlib.suppress(ClientError):
            for page in pages.paginate(**place, Prefix=self._prefix + start):
                for row in page.get("Uploads", ()):
                    there = {
                        part["PartNumber"]: part["ETag"].strip('"')
                        for found in parts.paginate(**place, Key=row["Key"], UploadId=row["UploadId"])
                        for part in found.get("Parts", ())
                    }
                    yield Multipart(row["Key"].removeprefix(self._prefix), row["UploadId"], there)

    def abort(self, start: str) -> None:
        """Give up the objects whose names start so and that are being sent in parts."""
        with self.explained():
            for upload in list(self.unfinished(start)):
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._prefix + upload.name, UploadId=upload.upload_id
                )

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""
        from botocore.exceptions import ClientError

        for some in _batches(names, _DELETED_AT_ONCE):
            keys = [{"Key": self._prefix + name} for name in some]
            with self.explained():
                try:
                    answer = self._client.delete_objects(
                        Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True}
                    )
                except ClientError as e:
                    if _code(e) in _REFUSED or _code(e) == "NoSuchBucket":
                        raise
                    # Not every service knows how to delete several at once.
                    for key in keys:
                        self._client.delete_object(Bucket=self._bucket, **key)
                    continue
            for error in answer.get("Errors", ()):
                raise StorageError(
                    f"{self}: {error.get('Key')} cannot be deleted: {error.get('Code')} {error.get('Message', '')}"
                )


def md5(content: bytes | bytearray) -> bytes:
    """Not for security: it is what the protocol knows its objects and their parts by."""
    return hashlib.md5(content, usedforsecurity=False).digest()


def etag(blocks: Sequence[bytes]) -> str:
    """The tag of an object that was sent in these blocks, of which this is the MD5 of each.

    Services that encrypt with keys of their own have other tags; theirs equal none.
    """
    if len(blocks) == 1:
        return blocks[0].hex()
    return f"{md5(b''.join(blocks)).hex()}-{len(blocks)}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _batches(names: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(names)
    while some := list(itertools.islice(rest, size)):
        yield some


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", "?"))


def _passes(error: BaseException) -> bool:
    from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

    if isinstance(error, ClientError):
        return _code(error) in _PASSING
    return isinstance(error, HTTPClientError | IncompleteReadError | ConnectionError | TimeoutError)


def _explain(error: Any) -> str:
    code = _code(error)
    if code == "NoSuchBucket":
        return "there is no such bucket; make it first, or correct checkpoint_storage.bucket"
    if code in _REFUSED:
        return (
            f"the service refuses us ({code}): check checkpoint_storage.access_key and secret_key, or this machine's own"
            " credentials, and what they may do with the bucket"
        )
    return f"the service answers {code} to {error.operation_name}"
