"""What all tests of recovery share."""

from tests.helpers.plain_reports import without_charts as without_charts
