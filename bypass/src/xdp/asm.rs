//! Assembler for the eBPF instructions that the program uses (RFC 9669), with labels.

/// Register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reg(pub u8);

/// Width of a load or store.
#[derive(Debug, Clone, Copy)]
pub(super) enum Width {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
    /// 64 bits.
    Double,
}

impl Width {
    /// Returns the bits of an opcode that state the width.
    fn bits(self) -> u8 {
        match self {
            Width::Byte => 0x10,
            Width::Half => 0x08,
            Width::Word => 0,
            Width::Double => 0x18,
        }
    }
}

/// Position in the code, bound by [`Assembler::bind`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Label(usize);

/// Code under construction. Instructions are in the encoding of the kernel, in the byte order of the machine.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<u64>,
    /// Positions of the labels that are bound.
    labels: Vec<Option<usize>>,
    /// Jumps, by position, and their labels.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds `label` to the next instruction.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn emit(&mut self, opcode: u8, destination: Reg, source: Reg, offset: i16, immediate: i32) {
        let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
        self.code.push(u64::from_ne_bytes([opcode, destination.0 | source.0 << 4, o0, o1, i0, i1, i2, i3]));
    }

    /// Loads `width` from the address in `base` plus `offset`.
    pub fn load(&mut self, width: Width, destination: Reg, base: Reg, offset: i16) {
        self.emit(0x61 | width.bits(), destination, base, offset, 0);
    }

    /// Stores `width` of `source` at the address in `base` plus `offset`.
    pub fn store(&mut self, width: Width, base: Reg, offset: i16, source: Reg) {
        self.emit(0x63 | width.bits(), base, source, offset, 0);
    }

    /// Stores `width` of `immediate`, sign-extended, at the address in `base` plus `offset`.
    pub fn store_immediate(&mut self, width: Width, base: Reg, offset: i16, immediate: i32) {
        self.emit(0x62 | width.bits(), base, Reg(0), offset, immediate);
    }

    /// Converts the lower 16 bits of a register from network byte order, and clears the others.
    pub fn swap_network_half(&mut self, register: Reg) {
        self.emit(0xdc, register, Reg(0), 0, 16);
    }

    /// Copies a register.
    pub fn copy(&mut self, destination: Reg, source: Reg) {
        self.emit(0xbf, destination, source, 0, 0);
    }

    /// Sets a register to `immediate`.
    pub fn set(&mut self, destination: Reg, immediate: i32) {
        self.emit(0xb7, destination, Reg(0), 0, immediate);
    }

    /// Adds `immediate` to a register.
    pub fn add(&mut self, destination: Reg, immediate: i32) {
        self.emit(0x07, destination, Reg(0), 0, immediate);
    }

    /// Sets a register to 64 bits.
    pub fn set_double(&mut self, destination: Reg, value: u64) {
        self.emit(0x18, destination, Reg(0), 0, value as u32 as i32);
        self.emit(0, Reg(0), Reg(0), 0, (value >> 32) as u32 as i32);
    }

    /// Sets a register to the map with the descriptor `fd`.
    pub fn set_map(&mut self, destination: Reg, fd: i32) {
        self.emit(0x18, destination, Reg(1), 0, fd);
        self.emit(0, Reg(0), Reg(0), 0, 0);
    }

    /// Calls the helper function `number`.
    pub fn call(&mut self, number: i32) {
        self.emit(0x85, Reg(0), Reg(0), 0, number);
    }

    /// Calls the function of the kernel with the type number `number`.
    pub fn call_kernel(&mut self, number: i32) {
        self.emit(0x85, Reg(0), Reg(2), 0, number);
    }

    /// Returns from the program with the value of register 0.
    pub fn exit(&mut self) {
        self.emit(0x95, Reg(0), Reg(0), 0, 0);
    }

    /// Jumps unconditionally.
    pub fn jump(&mut self, to: Label) {
        self.emit_jump(0x05, Reg(0), Reg(0), 0, to);
    }

    /// Jumps if `a` > `b`, unsigned.
    pub fn jump_if_greater(&mut self, a: Reg, b: Reg, to: Label) {
        self.emit_jump(0x2d, a, b, 0, to);
    }

    /// Jumps if `a` == `b`.
    pub fn jump_if_equal(&mut self, a: Reg, b: Reg, to: Label) {
        self.emit_jump(0x1d, a, b, 0, to);
    }

    /// Jumps if `a` != `b`.
    pub fn jump_if_unequal(&mut self, a: Reg, b: Reg, to: Label) {
        self.emit_jump(0x5d, a, b, 0, to);
    }

    /// Jumps if the lower 32 bits of `a` == `immediate`.
    pub fn jump_if_word(&mut self, a: Reg, immediate: u32, to: Label) {
        self.emit_jump(0x16, a, Reg(0), immediate as i32, to);
    }

    /// Jumps if the lower 32 bits of `a` != `immediate`.
    pub fn jump_unless_word(&mut self, a: Reg, immediate: u32, to: Label) {
        self.emit_jump(0x56, a, Reg(0), immediate as i32, to);
    }

    /// Jumps if `a` is null, by a comparison of 64 bits, which the verifier recognises as a null check.
    pub fn jump_if_null(&mut self, a: Reg, to: Label) {
        self.emit_jump(0x15, a, Reg(0), 0, to);
    }

    /// Jumps if the lower 32 bits of `a` < `immediate`, unsigned.
    pub fn jump_if_below(&mut self, a: Reg, immediate: u32, to: Label) {
        self.emit_jump(0xa6, a, Reg(0), immediate as i32, to);
    }

    /// Jumps if the lower 32 bits of `a` > `immediate`, unsigned.
    pub fn jump_if_above(&mut self, a: Reg, immediate: u32, to: Label) {
        self.emit_jump(0x26, a, Reg(0), immediate as i32, to);
    }

    /// Jumps if any of the bits `immediate` of the lower 32 bits of `a` is set.
    pub fn jump_if_any(&mut self, a: Reg, immediate: u32, to: Label) {
        self.emit_jump(0x46, a, Reg(0), immediate as i32, to);
    }

    fn emit_jump(&mut self, opcode: u8, a: Reg, b: Reg, immediate: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(opcode, a, b, 0, immediate);
    }

    /// Resolves the jumps and returns the code.
    ///
    /// # Panics
    /// If a label is not bound, or farther away than a jump reaches: 32 767 instructions.
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("every label is bound");
            let distance = target as i64 - at as i64 - 1;
            let [low, high] = i16::try_from(distance).expect("jumps are short").to_ne_bytes();
            let mut bytes = self.code[at].to_ne_bytes();
            (bytes[2], bytes[3]) = (low, high);
            self.code[at] = u64::from_ne_bytes(bytes);
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_skip_the_instructions_between() {
        let mut asm = Assembler::default();
        let (back, forward) = (asm.label(), asm.label());
        asm.bind(back);
        asm.jump_if_word(Reg(5), 0x8000_0001, forward);
        asm.set_double(Reg(7), 0x0102_0304_0506_0708);
        asm.jump(back);
        asm.bind(forward);
        asm.exit();
        let code: Vec<[u8; 8]> = asm.finish().into_iter().map(u64::to_ne_bytes).collect();
        let expected = [
            [0x16, 0x05, 3, 0, 1, 0, 0, 0x80],
            [0x18, 0x07, 0, 0, 8, 7, 6, 5],
            [0, 0, 0, 0, 4, 3, 2, 1],
            [0x05, 0, 0xfc, 0xff, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(code, expected);
    }

    #[test]
    fn loads_name_width_registers_and_offset() {
        let mut asm = Assembler::default();
        asm.load(Width::Half, Reg(5), Reg(2), 12);
        asm.load(Width::Double, Reg(0), Reg(2), 46);
        let code: Vec<[u8; 8]> = asm.finish().into_iter().map(u64::to_ne_bytes).collect();
        assert_eq!(code, [[0x69, 0x25, 12, 0, 0, 0, 0, 0], [0x79, 0x20, 46, 0, 0, 0, 0, 0]]);
    }
}
