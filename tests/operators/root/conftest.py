"""What all tests of roots share."""

from tests.helpers.plain_reports import without_charts as without_charts
