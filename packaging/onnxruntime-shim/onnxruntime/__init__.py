"""`import onnxruntime` gives `jangin.onnxruntime`."""

from jangin.onnxruntime import install

install()
