//! Base64 (RFC 4648 §4), which carries binary keys in meta commands.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Value of each digit, or [`NONE`].
const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut n = 0;
    while n < DIGITS.len() {
        values[DIGITS[n] as usize] = n as u8;
        n += 1;
    }
    values
};
const NONE: u8 = 0xff;

/// Decodes `text` into `out`, which must have three bytes for every four characters. Returns `None` if `text` is not
/// valid base64.
pub(super) fn decode<'o>(text: &[u8], out: &'o mut [u8]) -> Option<&'o [u8]> {
    let (quads, []) = text.as_chunks::<4>() else { return None };
    let (last, whole) = quads.split_last()?;
    let mut len = 0;
    let mut group = |quad: [u8; 4]| {
        let values = quad.map(|digit| VALUES[usize::from(digit)]);
        if values.contains(&NONE) {
            return None;
        }
        let [a, b, c, d] = values.map(u32::from);
        let [_, bytes @ ..] = (a << 18 | b << 12 | c << 6 | d).to_be_bytes();
        out[len..len + 3].copy_from_slice(&bytes);
        len += 3;
        Some(())
    };
    whole.iter().try_for_each(|quad| group(*quad))?;
    // Like memcached, ignore the unused bits.
    let missing = match last {
        [a, b, b'=', b'='] => group([*a, *b, b'A', b'A']).map(|()| 2),
        [a, b, c, b'='] => group([*a, *b, *c, b'A']).map(|()| 1),
        quad => group(*quad).map(|()| 0),
    }?;
    Some(&out[..len - missing])
}

/// Encodes `bytes` and passes the text to `put` in pieces.
pub(super) fn encode(bytes: &[u8], mut put: impl FnMut(&[u8])) {
    for group in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|n| u32::from(*group.get(n).unwrap_or(&0)));
        let bits = a << 16 | b << 8 | c;
        let mut quad = [18, 12, 6, 0].map(|shift| DIGITS[(bits >> shift & 63) as usize]);
        quad[group.len() + 1..].fill(b'=');
        put(&quad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        encode(bytes, |quad| text.extend_from_slice(quad));
        text
    }

    proptest! {
        #[test]
        fn encoded_bytes_are_decoded(bytes in prop::collection::vec(any::<u8>(), 1..60)) {
            let mut out = [0; 64];
            prop_assert_eq!(decode(&encoded(&bytes), &mut out), Some(&bytes[..]));
        }
    }

    #[test]
    fn examples_of_rfc_4648_match() {
        for (bytes, text) in
            [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encoded(bytes.as_bytes()), text.as_bytes());
            assert_eq!(decode(text.as_bytes(), &mut [0; 9]), Some(bytes.as_bytes()));
        }
    }

    #[test]
    fn invalid_base64_is_rejected() {
        for wrong in ["", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9!", "Zm=v", "Zm9v\0"] {
            assert_eq!(decode(wrong.as_bytes(), &mut [0; 16]), None, "{wrong:?}");
        }
        assert_eq!(decode(b"Zm9=", &mut [0; 3]), Some(&b"fo"[..]));
    }
}
