"""What all tests of chaos share."""

from tests.helpers.plain_reports import without_charts as without_charts
