"""Proof without a GPU: what Triton kernels become on six generations of GPUs, read from their machine code.

``python -m docs.kernels`` compiles what ``docs.kernels.configurations`` lists and reports registers, spills, shared
memory, programs per multiprocessor, tensor-core instructions, and the cycles of the inner loops against those of the
same kernel without labels.
"""
