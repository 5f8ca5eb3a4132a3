"""Tests of the kinds of input see no data sets of the machine either."""

from tests.data.conftest import empty_data_dir as empty_data_dir
