"""Tables, figures and one self-contained page from the records of finished runs."""

from __future__ import annotations

from fedctta.report.columns import arrange
from fedctta.report.figures import plot
from fedctta.report.folder import write_report
from fedctta.report.health import describe_health
from fedctta.report.table import Cell, Row, Table, print_table, results_table

__all__ = ["Cell", "Row", "Table", "arrange", "describe_health", "plot", "print_table", "results_table", "write_report"]
