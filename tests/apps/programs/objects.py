"""Uses an object store through Amazon's own library: objects.py SERVER BUCKET COMMAND ARGUMENT...

  make                     makes the bucket
  compare PREFIX DIR       compares the object PREFIX + name with each file below DIR, and counts other objects
  begin KEY                begins an upload in parts and leaves it unfinished
  unfinished               counts uploads that are neither complete nor aborted
  damage KEY               flips a bit in the middle of an object, and leaves its metadata unchanged
"""
import os
import sys

import boto3
from botocore.config import Config

server, bucket, command, *arguments = sys.argv[1:]
client = boto3.client(
    "s3",
    endpoint_url=server,
    region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
)


def compare(prefix, directory):
    """Prints for each file whether the object of its name is equal to it."""
    paths = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]
    names = [os.path.relpath(path, directory) for path in paths]
    names = sorted(name for name in names if not name.startswith("cairn-manifest."))
    for name in names:
        content = client.get_object(Bucket=bucket, Key=prefix + name)["Body"].read()
        is_equal = content == open(os.path.join(directory, name), "rb").read()
        print(name, "is equal" if is_equal else "DIFFERS")
    listed = client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    # A file sent in parts has one more object.
    others = [one["Key"] for one in listed if one["Key"] != prefix + "cairn-archive"]
    print(len(others) - len(names), "objects say that a checkpoint is there")


def damage(key):
    """Flips a bit of an object. Its metadata on the server, including the checksum, are unchanged."""
    found = client.get_object(Bucket=bucket, Key=key)
    content = bytearray(found["Body"].read())
    content[len(content) // 2] ^= 4
    client.put_object(Bucket=bucket, Key=key, Body=bytes(content), Metadata=found["Metadata"])


if command == "make":
    client.create_bucket(Bucket=bucket)
elif command == "compare":
    compare(*arguments)
elif command == "begin":
    client.create_multipart_upload(Bucket=bucket, Key=arguments[0])
elif command == "unfinished":
    print(len(client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])), "unfinished")
elif command == "damage":
    damage(*arguments)
else:
    sys.exit(f"objects.py: unknown command {command!r}")
