// The objects that a caller made and hasn't destroyed yet. SUCCESS is the including library's status.
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <set>

static std::set<void *> alive;
static int refuse;
template <class T> static int make(T **made, T value) { alive.insert(*made = new T(value)); return SUCCESS; }
template <class T> static int end(T *of) {
  if (!alive.erase(of)) std::abort();  // it was destroyed before
  delete of;
  return SUCCESS;
}
static bool are(std::initializer_list<const void *> all) {
  for (const void *one : all) if (!alive.count((void *)one)) return false;
  return true;
}
extern "C" void mock_refuse(int n) { refuse = n; }
extern "C" size_t mock_objects() { return alive.size(); }
