//! The parser: recursive descent over UTF-8 that was checked first, as deep as the limit and no deeper.

use super::{Error, Json, Kind, Number, Step};

/// Up to here every pair of names is compared, which is faster than sorting; beyond it names are sorted, so that an
/// object of a hundred thousand members costs n log n.
const PAIRWISE_NAMES_MAX: usize = 16;

/// Parses exactly one document with at most `depth_max` arrays and objects within each other.
pub(super) fn parse(bytes: &[u8], depth_max: usize) -> Result<Json, Error> {
    let text = std::str::from_utf8(bytes).map_err(|invalid| Error::new(invalid.valid_up_to(), Kind::InvalidUtf8))?;
    if text.starts_with('\u{feff}') {
        return Err(Error::new(0, Kind::ByteOrderMark));
    }
    let mut parser = Parser { text, bytes, at: 0, depth_left: depth_max, name_offsets: Vec::new() };
    parser.skip_space();
    if parser.at == bytes.len() {
        return Err(parser.error(Kind::Empty));
    }
    let value = parser.value()?;
    parser.skip_space();
    if parser.at < bytes.len() {
        return Err(parser.error(Kind::TrailingText));
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    /// The bytes of `text`.
    bytes: &'a [u8],
    /// The next byte to read. Wherever a slice of `text` begins or ends, it stands beside an ASCII byte.
    at: usize,
    /// How many arrays and objects may still be entered.
    depth_left: usize,
    /// Where the names of all unfinished objects begin, outer objects first: for the offset of a duplicate.
    name_offsets: Vec<usize>,
}

impl Parser<'_> {
    fn value(&mut self) -> Result<Json, Error> {
        match self.peek() {
            Some(b'"') => self.string().map(Json::String),
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'-' | b'0'..=b'9') => {
                let end = number_end(self.bytes, self.at).map_err(|(offset, kind)| Error::new(offset, kind))?;
                let number = Number::of_valid(&self.text[self.at..end]);
                self.at = end;
                Ok(Json::Number(number))
            }
            Some(b'n') => self.literal(b"null", Json::Null),
            Some(b't') => self.literal(b"true", Json::Bool(true)),
            Some(b'f') => self.literal(b"false", Json::Bool(false)),
            Some(_) => Err(self.error(Kind::ValueExpected)),
            None => Err(self.error(Kind::UnexpectedEnd)),
        }
    }

    fn literal(&mut self, literal: &[u8], value: Json) -> Result<Json, Error> {
        let rest = &self.bytes[self.at..];
        if rest.starts_with(literal) {
            self.at += literal.len();
            Ok(value)
        } else if literal.starts_with(rest) {
            Err(Error::new(self.bytes.len(), Kind::UnexpectedEnd))
        } else {
            Err(self.error(Kind::ValueExpected))
        }
    }

    fn array(&mut self) -> Result<Json, Error> {
        self.enter()?;
        let mut items = Vec::new();
        if self.peek() != Some(b']') {
            loop {
                items.push(self.value().map_err(|error| error.within(Step::Item(items.len())))?);
                self.skip_space();
                match self.peek() {
                    Some(b',') => self.advance(),
                    Some(b']') => break,
                    Some(_) => return Err(self.error(Kind::ItemSeparatorExpected)),
                    None => return Err(self.error(Kind::UnexpectedEnd)),
                }
            }
        }
        self.leave();
        Ok(Json::Array(items))
    }

    fn object(&mut self) -> Result<Json, Error> {
        self.enter()?;
        let own_names = self.name_offsets.len();
        let mut members: Vec<(String, Json)> = Vec::new();
        if self.peek() != Some(b'}') {
            loop {
                self.name_offsets.push(self.at);
                members.push(self.member().map_err(|error| error.within(Step::Member(members.len())))?);
                self.skip_space();
                match self.peek() {
                    Some(b',') => self.advance(),
                    Some(b'}') => break,
                    Some(_) => return Err(self.error(Kind::MemberSeparatorExpected)),
                    None => return Err(self.error(Kind::UnexpectedEnd)),
                }
            }
        }
        if let Some(second) = duplicate(&members) {
            let offset = self.name_offsets[own_names + second];
            return Err(Error::new(offset, Kind::DuplicateMember).within(Step::Member(second)));
        }
        self.name_offsets.truncate(own_names);
        self.leave();
        Ok(Json::Object(members))
    }

    fn member(&mut self) -> Result<(String, Json), Error> {
        let name = match self.peek() {
            Some(b'"') => self.string()?,
            Some(_) => return Err(self.error(Kind::NameExpected)),
            None => return Err(self.error(Kind::UnexpectedEnd)),
        };
        self.skip_space();
        match self.peek() {
            Some(b':') => self.advance(),
            Some(_) => return Err(self.error(Kind::ColonExpected)),
            None => return Err(self.error(Kind::UnexpectedEnd)),
        }
        Ok((name, self.value()?))
    }

    /// Reads a string, with `at` on its opening quote.
    fn string(&mut self) -> Result<String, Error> {
        self.at += 1;
        let start = self.at;
        self.skip_plain();
        if self.peek() == Some(b'"') {
            let string = self.text[start..self.at].to_owned();
            self.at += 1;
            return Ok(string);
        }
        let mut string = self.text[start..self.at].to_owned();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(string);
                }
                Some(b'\\') => string.push(self.escape()?),
                Some(_) => return Err(self.error(Kind::ControlCharacter)),
                None => return Err(self.error(Kind::UnexpectedEnd)),
            }
            let run = self.at;
            self.skip_plain();
            string.push_str(&self.text[run..self.at]);
        }
    }

    /// Moves to the next quote, backslash or control character, eight bytes at a time while there are none.
    fn skip_plain(&mut self) {
        while let Some(chunk) = self.bytes[self.at..].first_chunk::<8>() {
            if has_special(u64::from_le_bytes(*chunk)) {
                break;
            }
            self.at += 8;
        }
        let rest = &self.bytes[self.at..];
        let plain = rest.iter().position(|&byte| matches!(byte, b'"' | b'\\' | 0x00..=0x1f));
        self.at += plain.unwrap_or(rest.len());
    }

    /// Reads one escape, with `at` on its backslash.
    fn escape(&mut self) -> Result<char, Error> {
        let start = self.at;
        self.at += 1;
        let Some(letter) = self.peek() else { return Err(self.error(Kind::UnexpectedEnd)) };
        self.at += 1;
        Ok(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b't' => '\t',
            b'n' => '\n',
            b'f' => '\u{c}',
            b'r' => '\r',
            b'u' => return self.unicode_escape(start),
            _ => return Err(Error::new(start, Kind::InvalidEscape)),
        })
    }

    /// Reads the digits of the `\u` that began at `start`, and its second half where it is a surrogate.
    fn unicode_escape(&mut self, start: usize) -> Result<char, Error> {
        let first = self.four_hex(start)?;
        let lone = Error::new(start, Kind::LoneSurrogate);
        match first {
            0xd800..=0xdbff => {
                let second_start = self.at;
                if !self.bytes[self.at..].starts_with(b"\\u") {
                    return Err(lone);
                }
                self.at += 2;
                let second = self.four_hex(second_start)?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(lone);
                }
                let code_point = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                Ok(char::from_u32(code_point).expect("a surrogate pair is a code point"))
            }
            _ => char::from_u32(first).ok_or(lone),
        }
    }

    fn four_hex(&mut self, escape_start: usize) -> Result<u32, Error> {
        let rest = &self.bytes[self.at..];
        let digits = &rest[..rest.len().min(4)];
        let mut code = 0;
        for &digit in digits {
            let value = char::from(digit).to_digit(16).ok_or(Error::new(escape_start, Kind::InvalidEscape))?;
            code = code * 16 + value;
        }
        if digits.len() < 4 {
            return Err(Error::new(self.bytes.len(), Kind::UnexpectedEnd));
        }
        self.at += 4;
        Ok(code)
    }

    /// Steps into the array or object that `at` stands on.
    fn enter(&mut self) -> Result<(), Error> {
        self.depth_left = self.depth_left.checked_sub(1).ok_or_else(|| self.error(Kind::TooDeep))?;
        self.advance();
        Ok(())
    }

    /// Steps over the closing bracket or brace that `at` stands on.
    fn leave(&mut self) {
        self.at += 1;
        self.depth_left += 1;
    }

    /// Steps over one byte and the white space behind it.
    fn advance(&mut self) {
        self.at += 1;
        self.skip_space();
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn error(&self, kind: Kind) -> Error {
        Error::new(self.at, kind)
    }
}

/// Whether one of the eight bytes is a quote, a backslash or below 0x20. For each test, the highest bit of a byte is set
/// where `byte ^ pattern` is below a bound; a borrow can only set bits above a byte that is itself special.
fn has_special(bytes: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let below = |value: u64, bound: u64| value.wrapping_sub(ONES * bound) & !value & HIGH;
    let quote = below(bytes ^ (ONES * 0x22), 1);
    let backslash = below(bytes ^ (ONES * 0x5c), 1);
    (below(bytes, 0x20) | quote | backslash) != 0
}

/// The end of the number that begins at `start`, or the offset and kind of what is wrong with it.
pub(super) fn number_end(bytes: &[u8], start: usize) -> Result<usize, (usize, Kind)> {
    let digits_end = |from: usize| -> Result<usize, (usize, Kind)> {
        let count = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        match (count, bytes.get(from)) {
            (0, None) => Err((from, Kind::UnexpectedEnd)),
            (0, Some(_)) => Err((from, Kind::MalformedNumber)),
            _ => Ok(from + count),
        }
    };
    let first = if bytes.get(start) == Some(&b'-') { start + 1 } else { start };
    let mut at = digits_end(first)?;
    if bytes[first] == b'0' && at > first + 1 {
        return Err((first, Kind::LeadingZero));
    }
    if bytes.get(at) == Some(&b'.') {
        at = digits_end(at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        let signed = matches!(bytes.get(at + 1), Some(b'+' | b'-'));
        at = digits_end(at + 1 + usize::from(signed))?;
    }
    Ok(at)
}

/// The first member, by position, whose name an earlier one has.
fn duplicate(members: &[(String, Json)]) -> Option<usize> {
    if members.len() <= PAIRWISE_NAMES_MAX {
        return (1..members.len()).find(|&later| members[..later].iter().any(|(name, _)| *name == members[later].0));
    }
    let mut by_name: Vec<usize> = (0..members.len()).collect();
    // Unstable sorting allocates nothing; the position settles ties, so that the first of equals comes first.
    by_name.sort_unstable_by(|&a, &b| members[a].0.cmp(&members[b].0).then(a.cmp(&b)));
    by_name.windows(2).filter(|pair| members[pair[0]].0 == members[pair[1]].0).map(|pair| pair[1]).min()
}
