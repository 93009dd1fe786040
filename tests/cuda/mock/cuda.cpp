// A library with the functions of NVIDIA's driver that Jangin calls. Its one device is the CPU, its modules are
// what mock/nvrtc.cpp compiles, and work waits until a stream is synchronized, as late as the real one may do
// it. Memory lies between guards. Functions named mock_ steer what goes wrong and count what there is.
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t Address;
enum Status {
  SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100,
  INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, PTX_VERSION = 222,
  INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719,
  TOO_LARGE = 720, CAPTURE_INVALID = 901,
};
// Threads that load modules ask for names side by side, so that nothing is made when it is asked for.
static const std::map<int, const char *> NAMES = {
  {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
  {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
  {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"}, {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
  {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
  {PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
  {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"}, {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
  {MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS"}, {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
  {CAPTURE_INVALID, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
};

typedef std::function<int()> Work;
struct Graph { std::vector<Work> nodes; };
struct Stream { std::vector<Work> waiting; Graph *capture; };
struct Module { void *library; };
struct Function {
  int (*launch)(void **, unsigned, unsigned, unsigned, unsigned, bool);
  unsigned arguments;
  std::string name;
  unsigned most_shared = 48 << 10;
};
struct Event { double at; Stream *of; };
struct Memory { char *map; size_t mapped, size; };

static int version = 12000, major = 8, minor = 0, units = 4, image_error, cu_init, device_count = 1;
static size_t whole = (size_t)4 << 30, used;
static int allocations_left = -1, launches_left = -1, launched, graphs_launched, sticky;
static int integrated, copies_to_host, copies_on_device, waits, resident = 2, cooperates = 1;
static unsigned order;
static std::string faulty;
static std::map<Address, Memory> memories;
static std::set<Stream *> streams;
static std::set<void *> objects;  // modules, graphs and events that live
static thread_local std::vector<void *> entered;
static int CONTEXT;
static Stream defaults[3];  // numbers 0 and 1 are the default stream, 2 is that of a thread
static Stream *real(Stream *s) { return (Address)s > 2 ? s : &defaults[(Address)s ? (Address)s : 1]; }
static bool is_default(Stream *s) { return s >= defaults && s < defaults + 3; }
static int ordinal;  // the device that all memory is on

static int ready() { return entered.empty() ? INVALID_CONTEXT : sticky; }
static std::recursive_mutex lock;  // threads may use the driver side by side
#define READY std::lock_guard<std::recursive_mutex> held(lock); if (const int bad = ready()) return bad

// --- memory: 0x5a around it, and behind it a page that can't be touched

enum { PAGE = 4096, TO = 256, GUARD = 0x5a, FRESH = 0xff };
static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static std::map<Address, size_t> pinned;  // memory of the host's
static int allocate(Address *made, size_t size) {
  if (allocations_left == 0 || used + size > whole) return OUT_OF_MEMORY;
  if (allocations_left > 0) --allocations_left;
  const size_t room = up(up(size, TO) + TO, PAGE);
  char *map = (char *)mmap(nullptr, room + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return OUT_OF_MEMORY;
  mprotect(map + room, PAGE, PROT_NONE);
  char *at = map + room - up(size, TO);
  std::memset(map, GUARD, room);
  std::memset(at, FRESH, size);
  memories[(Address)at] = Memory{map, room + PAGE, size};
  used += size;
  *made = (Address)at;
  return SUCCESS;
}
static bool intact() {
  for (const auto &[at, m] : memories) {
    for (const char *p = m.map; p < (char *)at; ++p) if (*p != GUARD) return false;
    for (const char *p = (char *)at + m.size; p < m.map + m.mapped - PAGE; ++p) if (*p != GUARD) return false;
  }
  return true;
}
static int let_go(Address at) {
  const auto found = memories.find(at);
  if (found == memories.end()) return INVALID_VALUE;
  used -= found->second.size;
  munmap(found->second.map, found->second.mapped);
  memories.erase(found);
  return SUCCESS;
}
static size_t length(const Memory &m) { return m.size; }
static size_t length(size_t size) { return size; }
template <class M> static bool holds(const M &all, Address at, size_t size) {
  auto next = all.upper_bound(at);
  if (next == all.begin()) return false;
  --next;
  return at + size <= next->first + length(next->second);
}

// --- work

static sigjmp_buf out;
static void signalled(int number) { siglongjmp(out, number); }

static int run(
    const Function &f, std::vector<Address> given, unsigned groups, unsigned threads, unsigned shared, bool at_once) {
  ++launched;
  if (launches_left == 0) return DEVICE_UNAVAILABLE;
  if (launches_left > 0) --launches_left;
  if (!faulty.empty() && f.name.find(faulty) != std::string::npos) return ILLEGAL_ADDRESS;
  std::vector<void *> places;
  for (Address &a : given) places.push_back(&a);
  static char stack[64 << 10];
  stack_t other = {stack, 0, sizeof stack}, before;
  sigaltstack(&other, &before);
  struct sigaction act = {}, old[3];
  const int numbers[] = {SIGSEGV, SIGBUS, SIGILL};
  act.sa_handler = signalled;
  act.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (int n = 0; n < 3; ++n) sigaction(numbers[n], &act, &old[n]);
  int result;
  const int number = sigsetjmp(out, 1);
  if (number == 0) result = f.launch(places.data(), groups, threads, order, shared, at_once) ? LAUNCH_FAILED : SUCCESS;
  else result = number == SIGILL ? MISALIGNED_ADDRESS : ILLEGAL_ADDRESS;  // the compiler traps by SIGILL
  for (int n = 0; n < 3; ++n) sigaction(numbers[n], &old[n], nullptr);
  sigaltstack(&before, nullptr);
  return result == SUCCESS && !intact() ? ILLEGAL_ADDRESS : result;
}
// Of a capture that isn't relaxed: what waits for the whole device ends it.
enum { RELAXED = 2 };
static thread_local bool strict_capture;
static int capture_broken() { strict_capture = false; return CAPTURE_INVALID; }
static int drain(Stream *s) {
  std::vector<Work> work;
  work.swap(s->waiting);
  for (const Work &w : work) if (!sticky) sticky = w();
  return sticky;
}
static int enqueue(Stream *s, Work w) {
  if (s->capture) s->capture->nodes.push_back(w);
  else s->waiting.push_back(w);
  return SUCCESS;
}
static void drain_all() { for (Stream *s : streams) drain(s); for (Stream &s : defaults) drain(&s); }
static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

extern "C" {
// --- what tests say

void mock_reset() {
  allocations_left = launches_left = -1;
  launched = graphs_launched = sticky = image_error = cu_init = 0;
  order = 0; faulty = ""; version = 12000; major = 8; minor = 0; units = 4; whole = (size_t)4 << 30;
  device_count = 1; ordinal = 0; integrated = copies_to_host = 0; copies_on_device = waits = 0; resident = 2; cooperates = 1;
}
void mock_allocations_left(int n) { allocations_left = n; }
void mock_launches_left(int n) { launches_left = n; }
void mock_fault(const char *kernel) { faulty = kernel; }
void mock_order(unsigned n) { order = n; }
void mock_device(int of_major, int of_minor, size_t bytes) { major = of_major; minor = of_minor; whole = bytes; }
void mock_resident(int n, int all) { resident = n; cooperates = all; }
void mock_integrated(int n) { integrated = n; }
int mock_copies_to_host() { return copies_to_host; }
void mock_devices(int n) { device_count = n; }
void mock_version(int n) { version = n; }
void mock_image_error(int n) { image_error = n; }
void mock_init_error(int n) { cu_init = n; }
void mock_ordinal(int n) { ordinal = n; }
int mock_copies_on_device() { return copies_on_device; }
int mock_waits() { return waits; }
int mock_launches() { return launched; }
int mock_graph_launches() { return graphs_launched; }
// Work of another library on a stream. It is done each time that a graph with it runs.
int mock_enqueue(Stream *s, int (*work)(void *), void *with) {
  READY;
  return enqueue(s, [=] { const int bad = work(with); return bad ? bad : intact() ? SUCCESS : ILLEGAL_ADDRESS; });
}
// Whether memory of the device begins at an address and has this size at least.
int mock_holds(Address at, size_t size) { return holds(memories, at, size); }
size_t mock_live() { return memories.size() + pinned.size() + streams.size() + objects.size(); }

// --- the driver

int cuInit(unsigned) { return cu_init; }
int cuDriverGetVersion(int *said) { *said = version; return SUCCESS; }
int cuGetErrorName(int status, const char **said) {
  const auto found = NAMES.find(status);
  if (found == NAMES.end()) return INVALID_VALUE;
  *said = found->second;
  return SUCCESS;
}
int cuGetErrorString(int status, const char **said) {
  if (!NAMES.count(status)) return INVALID_VALUE;
  *said = "as the mock was told";
  return SUCCESS;
}
int cuDeviceGetCount(int *n) { *n = device_count; return SUCCESS; }
int cuDeviceGet(int *device, int n) { *device = n; return n < device_count ? SUCCESS : INVALID_DEVICE; }
int cuDeviceGetName(char *text, int size, int n) { std::snprintf(text, size, "Mock GPU %d", n); return SUCCESS; }
int cuDeviceGetAttribute(int *said, int question, int) {
  const std::map<int, int> answers = {{16, units}, {13, 1000000}, {36, 1000000}, {37, 256}, {38, 1 << 20}, {75, major}, {76, minor}, {18, integrated}, {99, integrated}, {95, cooperates}};
  const auto found = answers.find(question);
  *said = found == answers.end() ? 0 : found->second;
  return found == answers.end() ? INVALID_VALUE : SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = whole; return SUCCESS; }
int cuDevicePrimaryCtxRetain(void **made, int) { *made = &CONTEXT; return sticky == DEVICE_UNAVAILABLE ? sticky : SUCCESS; }
int cuDevicePrimaryCtxReset_v2(int) {
  while (!memories.empty()) let_go(memories.begin()->first);
  for (Stream *s : streams) delete s;
  for (Stream &s : defaults) s.waiting.clear();
  streams.clear();
  pinned.clear();
  objects.clear();
  if (sticky != DEVICE_UNAVAILABLE) sticky = SUCCESS;
  return SUCCESS;
}
int cuCtxPushCurrent_v2(void *context) { entered.push_back(context); return SUCCESS; }
int cuCtxPopCurrent_v2(void **context) {
  if (entered.empty()) return INVALID_CONTEXT;
  *context = entered.back();
  entered.pop_back();
  return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *all) { READY; *free = whole - used; *all = whole; return SUCCESS; }
int cuMemAlloc_v2(Address *made, size_t size) { READY; return size ? allocate(made, size) : INVALID_VALUE; }
int cuMemFree_v2(Address at) {
  READY;
  if (strict_capture) return capture_broken();
  drain_all();
  return let_go(at);
}
int cuMemHostRegister_v2(Address at, size_t size, unsigned) {
  READY;
  if (allocations_left == 0) return OUT_OF_MEMORY;
  if (allocations_left > 0) --allocations_left;
  if (at % PAGE || holds(pinned, at, size)) return INVALID_VALUE;
  pinned[at] = size;
  return SUCCESS;
}
int cuMemHostGetDevicePointer_v2(Address *there, Address at, unsigned flags) {
  READY;
  if (!integrated || flags || !holds(pinned, at, 1)) return INVALID_VALUE;
  *there = at;
  return SUCCESS;
}
int cuMemHostUnregister(Address at) {
  READY;
  drain_all();
  return pinned.erase(at) ? SUCCESS : INVALID_VALUE;
}
int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, Stream *s) {
  READY;
  if (!holds(memories, to, size)) return INVALID_VALUE;
  if (holds(pinned, (Address)from, size)) return enqueue(s, [=] { std::memcpy((void *)to, from, size); return SUCCESS; });
  std::vector<char> copy((const char *)from, (const char *)from + size);  // the driver has read it when it returns
  return enqueue(s, [=] { std::memcpy((void *)to, copy.data(), size); return SUCCESS; });
}
int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t size, Stream *s) {
  READY;
  if (!holds(memories, from, size)) return INVALID_VALUE;
  ++copies_to_host;
  return enqueue(s, [=] { std::memcpy(to, (void *)from, size); return SUCCESS; });
}
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, Stream *s) {
  READY;
  if (!holds(memories, to, size) || !holds(memories, from, size)) return INVALID_VALUE;
  ++copies_on_device;
  return enqueue(real(s), [=] { std::memcpy((void *)to, (void *)from, size); return SUCCESS; });
}
struct Side { size_t x, y; int kind; void *host; Address device; void *array; size_t pitch; };
struct Rows { Side from, to; size_t width, height; };
int cuMemcpy2DAsync_v2(const Rows *given, Stream *s) {
  READY;
  const Rows r = *given;
  for (const Side &side : {r.from, r.to})
    if (side.kind != 2 || side.pitch < r.width || side.x || side.y ||
        !holds(memories, side.device, side.pitch * (r.height - 1) + r.width)) return INVALID_VALUE;
  ++copies_on_device;
  return enqueue(real(s), [=] {
    for (size_t n = 0; n < r.height; ++n)
      std::memcpy((char *)r.to.device + n * r.to.pitch, (char *)r.from.device + n * r.from.pitch, r.width);
    return SUCCESS;
  });
}
int cuPointerGetAttribute(int *said, int question, Address at) {
  READY;
  if (question != 9 || !holds(memories, at, 1)) return INVALID_VALUE;
  *said = ordinal;
  return SUCCESS;
}

int cuStreamCreate(Stream **made, unsigned) { READY; streams.insert(*made = new Stream{{}, nullptr}); return SUCCESS; }
int cuStreamDestroy_v2(Stream *s) { READY; drain(s); streams.erase(s); delete s; return SUCCESS; }
int cuStreamSynchronize(Stream *s) {
  READY;
  if (!streams.count(s)) std::abort();  // the real one may do anything with what was destroyed
  return s->capture ? CAPTURE_INVALID : drain(s);
}
int cuStreamBeginCapture_v2(Stream *s, int mode) {
  READY;
  if (s->capture) return INVALID_VALUE;
  s->capture = new Graph;
  strict_capture = mode != RELAXED;
  return SUCCESS;
}
int cuStreamEndCapture(Stream *s, Graph **made) {
  READY;
  if (!s->capture) return INVALID_VALUE;
  strict_capture = false;
  objects.insert(*made = s->capture);
  s->capture = nullptr;
  return SUCCESS;
}
int cuGraphInstantiateWithFlags(Graph **made, Graph *of, unsigned long long) {
  READY;
  objects.insert(*made = new Graph(*of));
  return SUCCESS;
}
int cuGraphLaunch(Graph *g, Stream *s) {
  READY;
  if (!objects.count(g)) return INVALID_HANDLE;
  ++graphs_launched;
  for (const Work &w : g->nodes) enqueue(s, w);
  return SUCCESS;
}
int cuGraphDestroy(Graph *g) { READY; objects.erase(g); delete g; return SUCCESS; }
int cuGraphExecDestroy(Graph *g) { return cuGraphDestroy(g); }

int cuEventCreate(Event **made, unsigned) { READY; objects.insert(*made = new Event{0, nullptr}); return SUCCESS; }
int cuEventRecord(Event *e, Stream *s) {
  READY;
  e->of = real(s);
  return enqueue(e->of, [=] { if (objects.count(e)) e->at = now(); return SUCCESS; });
}
int cuStreamWaitEvent(Stream *s, Event *e, unsigned) {
  READY;
  Stream *of = e->of;  // as it is now: a later record isn't waited for
  ++waits;
  return enqueue(real(s), [=] { return is_default(of) || streams.count(of) ? drain(of) : SUCCESS; });
}
int cuEventSynchronize(Event *) { READY; drain_all(); return sticky; }
int cuEventElapsedTime(float *ms, Event *a, Event *b) { READY; *ms = 1e3 * (b->at - a->at); return SUCCESS; }
int cuEventDestroy_v2(Event *e) { READY; objects.erase(e); delete e; return SUCCESS; }

int cuModuleLoadDataEx(Module **made, const char *image, unsigned, const int *, void **) {
  READY;
  if (image_error) return image_error;
  if (std::memcmp(image, ELFMAG, SELFMAG)) return INVALID_IMAGE;
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
  const size_t size = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
  char path[] = "/tmp/mock-kernel-XXXXXX";  // loaders know libraries by their names: each has its own
  const int file = mkstemp(path);
  const bool written = file >= 0 && write(file, image, size) == (ssize_t)size;
  close(file);
  void *library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  if (!library) { std::fprintf(stderr, "mock: %s\n", dlerror()); return INVALID_IMAGE; }
  objects.insert(*made = new Module{library});
  return SUCCESS;
}
int cuModuleGetFunction(Function **made, Module *of, const char *name) {
  READY;
  void *launch = dlsym(of->library, (std::string(name) + "_launch").c_str());
  void *count = dlsym(of->library, (std::string(name) + "_arguments").c_str());
  if (!launch || !count) return NOT_FOUND;
  *made = new Function{(int (*)(void **, unsigned, unsigned, unsigned, unsigned, bool))launch, ((unsigned (*)())count)(), name};
  return SUCCESS;
}
int cuFuncSetAttribute(Function *f, int attribute, int value) {
  READY;
  if (attribute != 8 || value > 227 << 10) return INVALID_VALUE;
  f->most_shared = value;
  return SUCCESS;
}
int cuModuleUnload(Module *m) { READY; drain_all(); objects.erase(m); delete m; return SUCCESS; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *most, Function *, int, size_t) {
  READY;
  *most = resident;
  return SUCCESS;
}
static int launch(
    Function *f, unsigned groups, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
    unsigned shared, Stream *s, void **given, bool at_once) {
  READY;
  if (at_once && groups > (unsigned)(resident * units)) return TOO_LARGE;
  if (!groups || !threads || threads > 1024 || y * z * ty * tz != 1) return INVALID_VALUE;
  if (shared > f->most_shared) return INVALID_VALUE;
  std::vector<Address> values;
  for (unsigned n = 0; n < f->arguments; ++n) values.push_back(*(Address *)given[n]);
  return enqueue(s, [=] { return run(*f, values, groups, threads, shared, at_once); });
}
int cuLaunchKernel(
    Function *f, unsigned groups, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
    unsigned shared, Stream *s, void **given, void **) {
  return launch(f, groups, y, z, threads, ty, tz, shared, s, given, false);
}
int cuLaunchCooperativeKernel(
    Function *f, unsigned groups, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
    unsigned shared, Stream *s, void **given) {
  return launch(f, groups, y, z, threads, ty, tz, shared, s, given, true);
}
}
