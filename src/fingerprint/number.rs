//! A number's canonical text, by its exact decimal value, in work bounded by the length of its source text.

use super::Error;
use crate::json::Number;
use crate::limits;

/// Beyond this many digits before the point, a number with a fraction is above the greatest double.
const DOUBLE_POINT_MAX: i64 = 310;
/// With the first digit this far behind the point, a number is below half the least double, which rounds to zero.
const DOUBLE_POINT_MIN: i64 = -330;

/// Appends the canonical text: integers in plain decimal, others as ECMAScript writes the nearest double.
pub(super) fn write_number(out: &mut String, number: &Number) -> Result<(), Error> {
    let text = number.as_str();
    // What nearly every number is: an integer that already stands in its canonical form.
    if text.len() <= limits::FINGERPRINT_INTEGER_DIGITS_MAX && text.bytes().all(|byte| byte.is_ascii_digit()) {
        out.push_str(text);
        return Ok(());
    }
    let decimal = Decimal::of(text);
    if decimal.digits.is_empty() {
        out.push('0');
        return Ok(());
    }
    let significant = i64::try_from(decimal.digits.len()).expect("a text's length fits an i64");
    if decimal.point >= significant { decimal.write_integer(out) } else { decimal.write_fraction(out) }
}

/// The value ±0.DIGITS × 10^point, where the digits neither begin nor end with a zero. Zero has no digits. The value is an
/// integer exactly if the point lies behind all digits.
struct Decimal {
    negative: bool,
    digits: String,
    point: i64,
}

impl Decimal {
    /// Takes apart a text of JSON's number grammar.
    fn of(text: &str) -> Decimal {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(unsigned) => (true, unsigned),
            None => (false, text),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, saturating_exponent(exponent)),
            None => (unsigned, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits = String::with_capacity(whole.len() + fraction.len());
        digits.push_str(whole);
        digits.push_str(fraction);
        digits.truncate(digits.trim_end_matches('0').len());
        let leading = digits.len() - digits.trim_start_matches('0').len();
        digits.drain(..leading);
        let length = |length: usize| i64::try_from(length).expect("a text's length fits an i64");
        let point = exponent.saturating_add(length(whole.len())).saturating_sub(length(leading));
        Decimal { negative, digits, point }
    }

    fn write_integer(&self, out: &mut String) -> Result<(), Error> {
        let length = usize::try_from(self.point).ok().filter(|n| *n <= limits::FINGERPRINT_INTEGER_DIGITS_MAX);
        let length = length.ok_or(Error::IntegerTooLong)?;
        if self.negative {
            out.push('-');
        }
        out.push_str(&self.digits);
        out.extend(std::iter::repeat_n('0', length - self.digits.len()));
        Ok(())
    }

    fn write_fraction(&self, out: &mut String) -> Result<(), Error> {
        if self.point > DOUBLE_POINT_MAX {
            return Err(Error::BeyondDouble);
        }
        if self.point < DOUBLE_POINT_MIN {
            out.push('0');
            return Ok(());
        }
        // The standard library rounds correctly, also with more digits than a double can tell apart. It is given a small
        // exponent and no leading zeros, so no bound of its own on either is ever reached.
        let normal = format!("0.{}e{}", self.digits, self.point);
        let nearest: f64 = normal.parse().expect("digits and a small exponent are a number");
        if nearest.is_infinite() {
            return Err(Error::BeyondDouble);
        }
        if nearest == 0.0 {
            out.push('0');
            return Ok(());
        }
        if self.negative {
            out.push('-');
        }
        out.push_str(ryu_js::Buffer::new().format_finite(nearest));
        Ok(())
    }
}

/// An exponent of any number of digits. Where it doesn't fit, the nearest that does: no text is long enough to have so
/// many digits that the difference shows.
fn saturating_exponent(text: &str) -> i64 {
    const FAR: i64 = i64::MAX / 4;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let add = |value: i64, digit: u8| value.saturating_mul(10).saturating_add(i64::from(digit - b'0')).min(FAR);
    sign * digits.bytes().fold(0, add)
}
