//! Keys of meta commands in base64 (RFC 4648 §4).

use super::KEY;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

/// Like memcached, ignores the unused bits of the last digit.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Decodes a key of at most [`KEY`] bytes into `room`. Returns `None` if `text` is empty or not valid base64.
pub(super) fn decode<'k>(text: &[u8], room: &'k mut [u8; KEY]) -> Option<&'k [u8]> {
    let len = BASE64.decode_slice(text, room).ok().filter(|len| *len > 0)?;
    Some(&room[..len])
}

/// Encodes a key and passes the text to `put`.
pub(super) fn encode(key: &[u8], put: impl FnOnce(&[u8])) {
    let mut text = [0; KEY.div_ceil(3) * 4];
    // The buffer suffices for every key.
    let len = BASE64.encode_slice(key, &mut text).unwrap_or(0);
    put(&text[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_are_decoded() {
        for len in 1..=KEY / 4 * 3 {
            let key: Vec<u8> = (0..len).map(|n| (n * 167) as u8).collect();
            encode(&key, |text| assert_eq!(decode(text, &mut [0; KEY]), Some(&key[..])));
        }
        encode(&[0xff; KEY], |text| assert_eq!(text.len(), 336));
    }

    #[test]
    fn invalid_base64_is_rejected() {
        for wrong in ["", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9!", "Zm=v", "Zm9v\0"] {
            assert_eq!(decode(wrong.as_bytes(), &mut [0; KEY]), None, "{wrong:?}");
        }
        assert_eq!(decode(b"Zm9=", &mut [0; KEY]), Some(&b"fo"[..]));
    }
}
