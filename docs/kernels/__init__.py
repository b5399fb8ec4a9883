"""Proof without a GPU: what Triton kernels become on sm_80, sm_90 and sm_100, read from their machine code.

``python -m docs.kernels`` compiles every configuration that ``docs.kernels.configurations`` lists and reports
registers, spills, shared memory and the instructions of the inner loops beside those of the same kernel without labels.
"""
