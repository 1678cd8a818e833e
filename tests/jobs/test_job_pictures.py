"""Rows with pictures in `agentrl generate`: shown to a model that sees them, refused for one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.data.preprocess.picture_rows import write_pictures
from agentrl.data.row_pictures import PictureColumns
from agentrl.errors import DataError
from agentrl.jobs.tables import JobTable, prompt_columns
from agentrl.pictures import pictures_in


def test_rows_with_pictures(tmp_path: Path) -> None:
    file = str(write_pictures(tmp_path, 2, 1, 1)["train"])
    table = JobTable(file)
    columns = prompt_columns("prompt", routed=False)
    assert len(pictures_in(table.sample(0, columns, pictures=PictureColumns()).prompt)) == 1
    with pytest.raises(
        DataError, match=r"train.parquet, row 1, column 'images': got content, wanted nothing: the model"
    ):
        table.refuse_media(1)
