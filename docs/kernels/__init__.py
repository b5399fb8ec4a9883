"""Check Triton kernels without a GPU: read the machine code that they become on six generations of GPUs.

``python -m docs.kernels`` compiles the list in ``docs.kernels.configurations``. It reports registers, spills, shared
memory, programs per multiprocessor and tensor-core instructions, and compares the cycles of the inner loops with those
of the same kernel without labels.
"""
