"""What all tests of readers share."""

from tests.helpers.plain_reports import without_charts as without_charts
