"""Give batches of what lies in memory or in files: `mx.io`."""

from weft.mx.training.data_iter import DataBatch, DataDesc, DataIter, DataLoaderIter, NDArrayIter, ResizeIter
from weft.mx.training.file_iter import CSVIter, ImageRecordIter, LibSVMIter, MNISTIter, PrefetchingIter

__all__ = [
    "CSVIter",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "DataLoaderIter",
    "ImageRecordIter",
    "LibSVMIter",
    "MNISTIter",
    "NDArrayIter",
    "PrefetchingIter",
    "ResizeIter",
]
