/* Inferlets in C: a core module that exports `alloc` and `turn` (docs/inferlet-sandbox.md).
 *
 * A program defines `void begin(text facts)`. It makes calls, each answered by a function of the
 * program in a later turn; between turns nothing of it runs:
 *
 *     static void completed(void *data, text value) { finish(member(value, "text")); }
 *     void begin(text facts) {
 *       call("generate"); put_string("text", word("Hello")); then(completed, 0);
 *     }
 *
 * A refused call ends the program with its error, unless `otherwise` names a function for that.
 * Texts of answers last as long as their turn; `kept` copies one. Nothing is ever freed but pages.
 * Build with `sglang inferlet build FILE.c`; no C library is needed. */
#ifndef SGLANG_INFERLET_H
#define SGLANG_INFERLET_H

typedef struct { const char *at; unsigned size; } text;
typedef void (*answer)(void *data, text value);

void begin(text facts);

/* -- memory and texts ------------------------------------------------------------------------- */

extern char __heap_base;
static unsigned long heap_top;

static void *take(unsigned long size) { /* memory for the rest of the run, of zeros */
  if (!heap_top) heap_top = (unsigned long)&__heap_base;
  unsigned long at = (heap_top + 7) & ~7ul, end = at + size, has = __builtin_wasm_memory_size(0) << 16;
  if (end > has && __builtin_wasm_memory_grow(0, (end - has + 65535) >> 16) == (unsigned long)-1)
    __builtin_trap(); /* the limit `memory` of the run */
  heap_top = end;
  return (void *)at;
}

static void copy(void *to, const void *from, unsigned size) {
  for (unsigned i = 0; i < size; i++) ((volatile char *)to)[i] = ((const char *)from)[i];
}

static text word(const char *chars) {
  unsigned size = 0;
  while (chars[size]) size++;
  return (text){chars, size};
}

static text kept(text one) {
  char *to = take(one.size + 1);
  copy(to, one.at, one.size);
  return (text){to, one.size};
}

static int same(text one, const char *chars) {
  unsigned i = 0;
  while (i < one.size && chars[i] && one.at[i] == chars[i]) i++;
  return i == one.size && !chars[i];
}

static int place(text one, char wanted) { /* index of the first such byte, -1: none */
  for (unsigned i = 0; i < one.size; i++)
    if (one.at[i] == wanted) return (int)i;
  return -1;
}

typedef struct { char *at; unsigned size, room; } writer;

static void put(writer *to, text one) {
  if (to->size + one.size > to->room) {
    char *old = to->at;
    to->room = 2 * (to->size + one.size) + 1024;
    to->at = take(to->room);
    copy(to->at, old, to->size);
  }
  copy(to->at + to->size, one.at, one.size);
  to->size += one.size;
}

static void put_word(writer *to, const char *chars) { put(to, word(chars)); }

static void put_integer(writer *to, long long value) {
  char digits[24];
  unsigned at = sizeof digits;
  unsigned long long left = value < 0 ? -(unsigned long long)value : (unsigned long long)value;
  do digits[--at] = (char)('0' + left % 10); while (left /= 10);
  if (value < 0) digits[--at] = '-';
  put(to, (text){digits + at, (unsigned)sizeof digits - at});
}

static void put_decimal(writer *to, double value) { /* nine digits behind the point */
  if (value < 0) put_word(to, "-"), value = -value;
  unsigned long long whole = (unsigned long long)value;
  unsigned long long rest = (unsigned long long)((value - (double)whole) * 1e9 + 0.5);
  put_integer(to, (long long)(whole + rest / 1000000000));
  put_word(to, ".");
  for (unsigned long long unit = 100000000; unit; unit /= 10)
    put(to, (text){&"0123456789"[rest / unit % 10], 1});
}

static void put_quoted(writer *to, text one) { /* as a JSON string */
  put_word(to, "\"");
  for (unsigned i = 0; i < one.size; i++) {
    unsigned char c = (unsigned char)one.at[i];
    if (c == '"' || c == '\\') put_word(to, "\\");
    if (c >= 32) { put(to, (text){one.at + i, 1}); continue; }
    char code[7] = {'\\', 'u', '0', '0', (char)('0' + (c >> 4)), "0123456789abcdef"[c & 15], 0};
    put_word(to, code);
  }
  put_word(to, "\"");
}

/* -- reading JSON, which is known to be valid --------------------------------------------------- */

static const char *behind(const char *at) { /* behind the value that begins here */
  int depth = 0;
  do {
    if (*at == '"') {
      for (at++; *at != '"'; at++) at += *at == '\\';
    } else if (*at == '[' || *at == '{') depth++;
    else if (*at == ']' || *at == '}') depth--;
    else if (!depth) {
      while (*at && *at != ',' && *at != ']' && *at != '}') at++;
      return at;
    }
    at++;
  } while (depth);
  return at;
}

static const char *next(const char *at) { /* the next value or name: no space, comma or colon */
  while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r' || *at == ',' || *at == ':') at++;
  return at;
}

static text value_at(const char *at) { return (text){at, (unsigned)(behind(at) - at)}; }

static text member(text object, const char *name) { /* of size 0 where there is none */
  if (!object.size || *object.at != '{') return (text){"", 0};
  for (const char *at = next(object.at + 1); *at != '}'; at = next(behind(at))) {
    text found = value_at(at);
    at = next(at + found.size);
    if (same((text){found.at + 1, found.size - 2}, name)) return value_at(at);
  }
  return (text){"", 0};
}

static unsigned count(text list) {
  unsigned found = 0;
  for (const char *at = next(list.at + 1); *at != ']'; at = next(behind(at))) found++;
  return found;
}

static text element(text list, unsigned index) { /* of size 0 behind the end */
  const char *at = next(list.at + 1);
  for (; *at != ']' && index; index--) at = next(behind(at));
  return *at == ']' ? (text){"", 0} : value_at(at);
}

static long long integer(text number) {
  long long value = 0;
  for (unsigned i = number.at[0] == '-'; i < number.size; i++)
    if (number.at[i] >= '0' && number.at[i] <= '9') value = 10 * value + number.at[i] - '0';
    else break;
  return number.at[0] == '-' ? -value : value;
}

static int among(text list, long long value) { /* whether a list of integers has it */
  for (unsigned i = 0; i < count(list); i++)
    if (integer(element(list, i)) == value) return 1;
  return 0;
}

static unsigned hex(const char *at) {
  unsigned value = 0;
  for (int i = 0; i < 4; i++) value = 16 * value + (unsigned)(at[i] <= '9' ? at[i] - '0' : (at[i] | 32) - 'a' + 10);
  return value;
}

static text unquoted(text string) { /* the UTF-8 of a JSON string, kept */
  char *to = take(string.size + 1), *begun = to;
  for (unsigned i = 1; i + 1 < string.size; i++) {
    char c = string.at[i];
    if (c != '\\') { *to++ = c; continue; }
    c = string.at[++i];
    int known = place(word("bfnrt"), c);
    if (known >= 0) { *to++ = "\b\f\n\r\t"[known]; continue; }
    if (c != 'u') { *to++ = c; continue; }
    unsigned code = hex(string.at + i + 1);
    i += 4;
    if (code >= 0xd800 && code < 0xdc00) {
      code = 0x10000 + ((code - 0xd800) << 10) + hex(string.at + i + 3) - 0xdc00;
      i += 6;
    }
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *to++ = (char)(more ? (0xf00u >> more & 0xf0) | code >> 6 * more : code);
    while (more--) *to++ = (char)(0x80 | (code >> 6 * more & 0x3f));
  }
  return (text){begun, (unsigned)(to - begun)};
}

static void *unpacked(text string) { /* the bytes of a base64 string, kept */
  unsigned char *bytes = take(string.size), *to = bytes;
  unsigned held = 0, bits = 0;
  for (unsigned i = 1; i + 1 < string.size; i++) {
    char c = string.at[i];
    int digit = c == '+' ? 62 : c == '/' ? 63 : c == '=' ? -1 : c <= '9' ? c - '0' + 52
                : c <= 'Z' ? c - 'A' : c - 'a' + 26;
    if (digit < 0) break;
    held = held << 6 | (unsigned)digit;
    if ((bits += 6) >= 8) *to++ = (unsigned char)(held >> (bits -= 8));
  }
  return bytes;
}

/* -- calls ------------------------------------------------------------------------------------- */

typedef struct { answer then, otherwise; void *data; } waiting;
static waiting *open_calls;
static unsigned call_count, call_room;
static writer calls;

static void call(const char *name) { /* begins a call; the fields follow */
  if (++call_count >= call_room) {
    waiting *old = open_calls;
    call_room = 2 * call_count + 64;
    open_calls = take(call_room * sizeof *open_calls);
    copy(open_calls, old, call_count * sizeof *open_calls);
  }
  open_calls[call_count] = (waiting){0, 0, 0};
  put_word(&calls, calls.size > 1 ? "},{\"call\":\"" : "{\"call\":\"");
  put_word(&calls, name);
  put_word(&calls, "\",\"id\":");
  put_integer(&calls, call_count);
}

static writer *field(const char *name) { /* begins a field; its JSON follows */
  put_word(&calls, ",\"");
  put_word(&calls, name);
  put_word(&calls, "\":");
  return &calls;
}

static void put_json(const char *name, text json) { put(field(name), json); }
static void put_string(const char *name, text one) { put_quoted(field(name), one); }
static void put_number(const char *name, long long value) { put_integer(field(name), value); }

static void put_numbers(const char *name, const int *values, unsigned size) {
  field(name);
  for (unsigned i = 0; i < size; i++) put_word(&calls, i ? "," : "["), put_integer(&calls, values[i]);
  put_word(&calls, size ? "]" : "[]");
}

static void then(answer function, void *data) { /* the function that gets the call's answer */
  open_calls[call_count].then = function;
  open_calls[call_count].data = data;
}

static void otherwise(answer function) { /* gets {"code", "message"} where the call is refused */
  open_calls[call_count].otherwise = function;
}

static void fail(text reason) { call("exit"); put_string("error", reason); }
static void finish(text json) { call("set_return"); put_json("value", json); call("exit"); }

/* -- turns ------------------------------------------------------------------------------------- */

__attribute__((export_name("alloc"))) void *alloc(unsigned size) {
  static char *buffer;
  static unsigned room;
  if (size >= room) buffer = take(room = 2 * size + 1);
  buffer[size] = 0;
  return buffer;
}

__attribute__((export_name("turn"))) unsigned long long turn(char *at, unsigned size) {
  static int begun;
  calls.size = 0;
  put_word(&calls, "[");
  at[size] = 0;
  if (!begun) {
    begun = 1;
    begin((text){at, size});
  } else {
    for (const char *one = next(at + 1); *one != ']'; one = next(behind(one))) {
      text given = value_at(one), error = member(given, "error");
      waiting to = open_calls[integer(member(given, "id"))];
      if (!error.size) { if (to.then) to.then(to.data, member(given, "value")); }
      else if (to.otherwise) to.otherwise(to.data, error);
      else call("exit"), put_json("error", member(error, "message"));
    }
  }
  put_word(&calls, calls.size > 1 ? "}]" : "]");
  return (unsigned long long)(unsigned long)calls.at << 32 | calls.size;
}

#endif
