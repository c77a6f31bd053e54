"""Nearest centroids by a matrix product of PyTorch, which is always installed; on CUDA where there is one."""

from __future__ import annotations

from .kmeans_backends import Search
from .kmeans_rows import Ids, Rows


class Torch:
    """``rows @ centroids.T`` and the best two columns."""

    name = "torch"

    def missing(self) -> str | None:
        return None

    def search(self, centroids: Rows) -> Search:
        import torch

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        columns = torch.from_numpy(centroids).to(device).T  # (d, M)
        nearest = min(2, len(centroids))

        def search(rows: Rows) -> tuple[Ids, Rows]:
            scores, ids = torch.topk(torch.from_numpy(rows).to(device) @ columns, nearest)
            return ids.cpu().numpy(), scores.cpu().numpy()

        return search
