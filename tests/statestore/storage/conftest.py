"""The remote stores that servers stand for, as fixtures of every test of this folder."""

from tests.servers.clouds import azure_endpoint, cloud, fronts, gcs_endpoint, s3_endpoint

__all__ = ["azure_endpoint", "cloud", "fronts", "gcs_endpoint", "s3_endpoint"]
