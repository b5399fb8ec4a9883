// Runs a package of AOTInductor without Python: run FILE.so PACKAGE.pt2 OUTPUT.pt INPUT.pt...
//
// FILE.so is what `python -m relgraph compile --exported` made, or "" for a package without compiled kernels. Inputs are
// tensors that torch.save wrote, one per file.
#include <dlfcn.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

int main(int count, char** given) {
  if (count < 5) return std::cerr << "wanted FILE.so PACKAGE.pt2 OUTPUT.pt INPUT.pt...\n", 2;
  if (!dlopen(given[1], RTLD_NOW)) return std::cerr << dlerror() << "\n", 1;  // this registers the operator
  std::vector<at::Tensor> inputs;
  for (int i = 4; i < count; i++) {
    std::ifstream file(given[i], std::ios::binary);
    inputs.push_back(torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}}).toTensor());
  }
  torch::inductor::AOTIModelPackageLoader package(given[2]);
  const std::vector<at::Tensor> outputs = package.run(inputs);
  const std::vector<char> made = torch::jit::pickle_save(outputs[0]);
  std::ofstream(given[3], std::ios::binary).write(made.data(), std::streamsize(made.size()));
}
