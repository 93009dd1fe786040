// A library with NVRTC's functions, whose code runs on the CPU: see shim.h. MOCK_CXX is the compiler's command,
// and MOCK_FOLDER has shim.h and what was compiled before.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

typedef struct Program { std::string text, code, log; } *nvrtcProgram;
enum { VERSION = 12, COMPILATION = 6 };

static std::string read(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
// The names behind each __launch_bounds__(n) of the text.
static std::string launchable(const std::string &text) {
  std::string found;
  for (size_t at = 0; (at = text.find("__launch_bounds__(", at)) != std::string::npos;) {
    at = text.find(')', at) + 1;
    const size_t name = text.find_first_not_of(" \n", at), end = text.find('(', name);
    found += "LAUNCHABLE(" + text.substr(name, end - name) + ")\n";
    at = end;
  }
  return found;
}

extern "C" {
int nvrtcVersion(int *major, int *minor) { *major = VERSION; *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 7; return 0; }
int nvrtcGetSupportedArchs(int *found) {
  const int all[] = {62, 75, 80, 86, 87, 89, 90};
  std::memcpy(found, all, sizeof all);
  return 0;
}
int nvrtcCreateProgram(nvrtcProgram *made, const char *text, const char *, int, const char **, const char **) {
  *made = new Program{text, "", ""};
  return 0;
}
int nvrtcCompileProgram(nvrtcProgram program, int, const char **) {
  const std::string folder = std::getenv("MOCK_FOLDER"), compiler = std::getenv("MOCK_CXX");
  const std::string text = "#include \"" + folder + "/shim.h\"\n" + program->text + launchable(program->text);
  char name[40];
  std::snprintf(name, sizeof name, "/%016zx", std::hash<std::string>()(text + compiler));
  const std::string base = folder + name, library = base + ".so";
  program->code = read(library);
  if (program->code.empty()) {
    char own[32];
    std::snprintf(own, sizeof own, ".%p.%d", (void *)program, std::rand());
    const std::string source = base + own + ".cpp", made = base + own + ".so", log = base + own + ".log";
    std::ofstream(source) << text;
    const std::string command = compiler + " -o " + made + " " + source + " >" + log + " 2>&1";
    const int failed = std::system(command.c_str());
    program->log = read(log);
    std::remove(log.c_str());
    if (failed) return COMPILATION;
    std::remove(source.c_str());
    std::rename(made.c_str(), library.c_str());
    program->code = read(library);
  }
  return 0;
}
static int size(const std::string &of, size_t *said) { *said = of.size(); return 0; }
static int text(const std::string &of, char *said) { std::memcpy(said, of.data(), of.size()); return 0; }
int nvrtcGetProgramLogSize(nvrtcProgram p, size_t *said) { return size(p->log, said); }
int nvrtcGetProgramLog(nvrtcProgram p, char *said) { return text(p->log, said); }
int nvrtcGetCUBINSize(nvrtcProgram p, size_t *said) { return size(p->code, said); }
int nvrtcGetCUBIN(nvrtcProgram p, char *said) { return text(p->code, said); }
int nvrtcGetPTXSize(nvrtcProgram p, size_t *said) { return size(p->code, said); }
int nvrtcGetPTX(nvrtcProgram p, char *said) { return text(p->code, said); }
int nvrtcDestroyProgram(nvrtcProgram *p) { delete *p; *p = nullptr; return 0; }
}
