"""An AWS that answers (moto's server), with a real Auto Scaling Group and an SSM in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

REGION = "eu-central-1"
GROUP = "asg-prod-sdxl"

#: What boto3 needs to sign, and to keep it from asking any real service.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_SESSION_TOKEN": "test",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


@dataclass(frozen=True)
class Aws:
    url: str

    def client(self, service: str) -> Any:
        return boto3.Session().client(  # type: ignore[call-overload]
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def make_group(self) -> str:
        """The group with one instance; its id."""
        scaling = self.client("autoscaling")
        scaling.create_launch_configuration(
            LaunchConfigurationName="gpu", ImageId="ami-12c6146b", InstanceType="g4dn.xlarge"
        )
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=GROUP,
            LaunchConfigurationName="gpu",
            MinSize=0,
            MaxSize=3,
            DesiredCapacity=1,
            AvailabilityZones=[f"{REGION}a"],
            NewInstancesProtectedFromScaleIn=False,
        )
        return str(self._instance()["InstanceId"])

    def is_protected(self) -> bool:
        return bool(self._instance()["ProtectedFromScaleIn"])

    def _instance(self) -> Any:
        groups = self.client("autoscaling").describe_auto_scaling_groups(
            AutoScalingGroupNames=[GROUP]
        )
        return groups["AutoScalingGroups"][0]["Instances"][0]


@contextmanager
def aws() -> Iterator[Aws]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield Aws(f"http://{host}:{port}")
    finally:
        server.stop()
