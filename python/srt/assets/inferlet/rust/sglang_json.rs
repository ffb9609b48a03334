//! JSON as the calls and answers of inferlets need it: read in place from a text that is known to be
//! valid, and written. Integers and fractions lose nothing on the way.

use std::str::Chars;

use super::{error, Error};

/// A value inside of a JSON text, which is known to be valid.
#[derive(Clone, Copy)]
pub struct Json<'a>(pub &'a str);

/// A JSON text of its own.
pub struct Raw(pub String);

/// The values of a list, or the names and values of an object in turn.
pub struct Items<'a>(&'a str);

impl<'a> Iterator for Items<'a> {
    type Item = Json<'a>;
    fn next(&mut self) -> Option<Json<'a>> {
        let rest = self.0.trim_start_matches(&[' ', '\n', '\t', '\r', ',', ':'][..]);
        let value = rest.get(..value_size(rest.as_bytes()))?;
        self.0 = rest.get(value.len()..)?;
        if value.is_empty() { None } else { Some(Json(value)) }
    }
}

fn value_size(bytes: &[u8]) -> usize { // of the value that begins here; 0 at the end of a list
    let (mut at, mut depth) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => while { at += 1; bytes[at] != b'"' } { at += (bytes[at] == b'\\') as usize },
            b'[' | b'{' => depth += 1,
            b']' | b'}' if depth == 0 => break,
            b']' | b'}' => depth -= 1,
            _ if depth > 0 => {}
            _ => return bytes.iter().position(|byte| b",:]} \n\t\r".contains(byte)).unwrap_or(bytes.len()),
        }
        at += 1;
        if depth == 0 { break }
    }
    at
}

impl Raw { pub fn json(&self) -> Json<'_> { Json(&self.0) } }

impl<'a> Json<'a> {
    pub fn items(self) -> Items<'a> {
        Items(self.0.strip_prefix(&['[', '{'][..]).unwrap_or(""))
    }

    pub fn get(self, name: &str) -> Option<Json<'a>> {
        let mut items = self.items();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            if String::read(key).map_or(false, |key| key == name) { return Some(value) }
        }
        None
    }

    #[track_caller]
    pub fn field<T: Read>(self, name: &str) -> Result<T, Error> {
        self.get(name).map_or_else(|| Err(error("error", &format!("no member {}", name))), T::read)
    }
}

/// What can be read from JSON.
pub trait Read: Sized { fn read(json: Json) -> Result<Self, Error>; }

/// What can be written as JSON.
pub trait Write { fn write(&self, to: &mut String); }

/// An object of names and values.
pub fn object(fields: &[(&str, &dyn Write)]) -> Raw {
    let mut text = String::from("{");
    for (index, (name, value)) in fields.iter().enumerate() {
        if index > 0 { text.push(',') }
        name.write(&mut text); text.push(':'); value.write(&mut text);
    }
    Raw(text + "}")
}

/// Bytes, which are base64 in JSON.
pub struct Bytes(pub Vec<u8>);

macro_rules! plain { ($($kind:ty)*) => { $(
    impl Read for $kind { fn read(json: Json) -> Result<Self, Error> { Ok(json.0.parse()?) } }
)* } }
plain!(bool i32 i64 u32 u64 usize f64);

macro_rules! integers { ($($kind:ty)*) => { $(
    impl Write for $kind { fn write(&self, to: &mut String) { write_integer(*self as i128, to) } }
)* } }
integers!(i32 i64 u32 u64 usize);

fn write_integer(value: i128, to: &mut String) {
    if value < 0 { to.push('-') }
    let (value, mut unit) = (value.unsigned_abs() as u64, 1);
    while value / unit > 9 { unit *= 10 }
    while unit > 0 {
        to.push((b'0' + (value / unit % 10) as u8) as char);
        unit /= 10;
    }
}

impl Write for bool { fn write(&self, to: &mut String) { to.push_str(if *self { "true" } else { "false" }) } }

impl Write for f64 {
    /// Up to 17 digits, which give the same number again. `core` would take 20 KB for that.
    fn write(&self, to: &mut String) {
        let (bits, power) = (self.to_bits(), (self.to_bits() >> 52 & 0x7ff) as i32);
        if power == 0x7ff { return to.push_str("null") }
        let power = power.max(1) - 1075; // the number is left * 2^power
        let mut left = bits & ((1 << 52) - 1) | ((power > -1074 || bits >> 52 & 1 > 0) as u64) << 52;
        let mut digits = Vec::new(); // the lowest first
        while left > 0 { digits.push((left % 10) as u8); left /= 10 }
        for _ in 0..power.abs() { // 2^-1 is 5 * 10^-1
            let mut carry = 0;
            for digit in &mut digits {
                carry += *digit * if power < 0 { 5 } else { 2 };
                *digit = carry % 10;
                carry /= 10;
            }
            if carry > 0 { digits.push(carry) }
        }
        let gone = digits.len().saturating_sub(17);
        let up = gone > 0 && digits[gone - 1] > 4;
        digits.drain(..gone);
        let nines = digits.iter().take_while(|&&digit| up && digit == 9).count();
        digits[..nines].fill(0);
        if nines == digits.len() { digits.push(up as u8) } else { digits[nines] += up as u8 }
        let zeros = digits.iter().take_while(|&&digit| digit == 0).count();
        if *self < 0.0 { to.push('-') }
        for digit in digits[zeros.min(digits.len() - 1)..].iter().rev() { to.push((b'0' + digit) as char) }
        to.push('e');
        write_integer((power.min(0) + (gone + zeros) as i32) as i128, to);
    }
}

impl Read for () { fn read(_: Json) -> Result<(), Error> { Ok(()) } }
impl Write for () { fn write(&self, to: &mut String) { to.push_str("null") } }
impl Read for Raw { fn read(json: Json) -> Result<Raw, Error> { Ok(Raw(json.0.into())) } }
impl Write for Raw { fn write(&self, to: &mut String) { to.push_str(&self.0) } }
impl<T: Write> Write for Vec<T> { fn write(&self, to: &mut String) { self[..].write(to) } }
impl Write for String { fn write(&self, to: &mut String) { self[..].write(to) } }
impl Write for &str { fn write(&self, to: &mut String) { (**self).write(to) } }

impl<T: Read> Read for Vec<T> {
    fn read(json: Json) -> Result<Self, Error> { json.items().map(T::read).collect() }
}

impl<T: Write> Write for [T] {
    fn write(&self, to: &mut String) {
        to.push('[');
        for (index, one) in self.iter().enumerate() {
            if index > 0 { to.push(',') }
            one.write(to);
        }
        to.push(']');
    }
}

impl<A: Write, B: Write> Write for (A, B) {
    fn write(&self, to: &mut String) {
        to.push('['); self.0.write(to); to.push(','); self.1.write(to); to.push(']');
    }
}

impl Write for str {
    fn write(&self, to: &mut String) {
        to.push('"');
        for c in self.chars() {
            if c == '"' || c == '\\' { to.push('\\') }
            if c >= ' ' { to.push(c); continue }
            to.push_str(if c < '\x10' { "\\u000" } else { "\\u001" });
            to.push(b"0123456789abcdef"[c as usize & 15] as char);
        }
        to.push('"');
    }
}

fn hex(chars: &mut Chars) -> u32 {
    chars.take(4).fold(0, |code, c| code << 4 | c.to_digit(16).unwrap_or(0))
}

impl Read for String {
    fn read(json: Json) -> Result<String, Error> {
        let inner = json.0.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let mut chars = inner.ok_or_else(|| error("error", "a value is no text"))?.chars();
        let mut text = String::new();
        while let Some(c) = chars.next() {
            text.push(match if c == '\\' { chars.next() } else { None } {
                None => c,
                Some('u') => {
                    let mut code = hex(&mut chars);
                    if code & 0xfc00 == 0xd800 && chars.as_str().starts_with("\\u") {
                        chars.nth(1);
                        code = 0x10000 + ((code & 0x3ff) << 10 | hex(&mut chars) & 0x3ff);
                    }
                    char::from_u32(code).unwrap_or('\u{fffd}')
                }
                Some(c) => "b\u{8}f\u{c}n\nr\rt\t".find(c).map_or(c, |at| b"\x08\x0c\n\r\t"[at / 2] as char),
            });
        }
        Ok(text)
    }
}

impl Read for Bytes {
    fn read(json: Json) -> Result<Bytes, Error> {
        let (mut bytes, mut held, mut bits) = (Vec::new(), 0u32, 0);
        for c in json.0.bytes() {
            held = held << 6 | match c {
                b'A'..=b'Z' => c - b'A', b'a'..=b'z' => c - b'a' + 26, b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62, b'/' => 63, _ => continue,
            } as u32;
            bits += 6;
            if bits >= 8 { bits -= 8; bytes.push((held >> bits) as u8) }
        }
        Ok(Bytes(bytes))
    }
}
