#!/usr/bin/env python3
"""check_ptxas.py on recorded text: what is wrong is named, what is right is read."""
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_ptxas as c  # noqa: E402

ELEMENTWISE = "_ZN5kvant4cuda18elementwise_kernelILNS_12QuantizeKindE0EfaEEvPKvPvi"
TILE = "_ZN5kvant4cuda36_GLOBAL__N__fb8dd7b8_4_a_cu_5560034318linear_tile_kernelILi128ENS_4HalfEEEvPKvPvi"
SMALL = "_ZN5kvant4cuda19linear_small_kernelIdEEvPKvPvi"

LOG = f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{ELEMENTWISE}' for 'sm_80'
ptxas info    : Function properties for {ELEMENTWISE}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 372 bytes cmem[0]
ptxas info    : Compile time = 17.731 ms
ptxas info    : Compiling entry function '{ELEMENTWISE}' for 'sm_90'
ptxas info    : Function properties for {ELEMENTWISE}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem
ptxas info    : Compile time = 1.024 ms
"""
SPILL = f"""ptxas info    : Compiling entry function '{TILE}' for 'sm_120'
ptxas info    : Function properties for {TILE}
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 24 bytes cumulative stack size
"""
ELEMENTWISE_PTX = f"""
//
.version 9.0
.target sm_80
.visible .entry {ELEMENTWISE}(
	.param .u64 .ptr .align 1 {ELEMENTWISE}_param_0,
	.param .u32 {ELEMENTWISE}_param_2
)
.maxntid 256
.minnctapersm 4
{{
	.reg .b32 	%r<17>;
	ld.global.nc.v4.f32 	{{%f1, %f2, %f3, %f4}}, [%rd6];
	@%p1 bra 	$L__BB0_2;
	st.global.v2.b64 	[%rd7], {{%rd1, %rd2}};
	ret;

}}
"""
TILE_PTX = f"""
.entry {TILE}(
	.param .u64 p0
)
.maxntid 128, 1, 1
{{
	cp.async.cg.shared.global [%r7], [%rd1], 16, %r2;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r3, %r4, %r5, %r6}}, [%r7];
	st.global.v4.b32 	[%rd9], {{%r8, %r9, %r10, %r11}};
	mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {{%r8, %r9, %r10, %r11}}, {{%r3, %r4, %r5, %r6}}, {{%r3, %r4}}, …;
	ret;
}}
"""
SMALL_PTX = f"""
.visible .entry {SMALL}(
	.param .u64 p0
)
{{
	ld.global.v4.u32 	{{%r43, %r44, %r45, %r46}}, [%rd11];
	dp4a.s32.s32 %r34, %r43, %r44, %r37;
	ret;
}}
"""


class Ptxas(unittest.TestCase):
    def test_figures(self):
        rows, wrong = c.collect([LOG], [ELEMENTWISE_PTX])
        self.assertEqual(wrong, [])
        self.assertEqual([(row["name"], row["arch"], row["registers"], row["shared"], row["threads"], row["blocks"])
                          for row in rows],
                         [("elementwise<quantize, f32, s8>", 80, 32, 0, 256, 4),
                          ("elementwise<quantize, f32, s8>", 90, 40, 2048, 256, 4)])

    def test_spill_and_stack_are_named(self):
        _, wrong = c.collect([LOG, SPILL], [])
        self.assertEqual(wrong, ["linear_tile<128, f16> for sm_120 spills: 16 bytes stored, 20 bytes loaded",
                                 "linear_tile<128, f16> for sm_120 has a stack frame of 24 bytes"])

    def test_a_function_that_was_not_inlined_counts_for_its_entry(self):
        log = LOG.replace("ptxas info    : Used 40", "ptxas info    : Function properties for slow_path\n"
                          "    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 40")
        _, wrong = c.collect([log], [])
        self.assertEqual(wrong, ["elementwise<quantize, f32, s8> for sm_90 has a stack frame of 8 bytes"])

    def test_missing_registers_are_no_success(self):
        _, wrong = c.collect([LOG.replace("Used 40 registers", "Used some registers")], [])
        self.assertEqual(wrong, ["elementwise<quantize, f32, s8> for sm_90: ptxas reported no registers"])


class Ptx(unittest.TestCase):
    def wrong(self, ptx):
        return c.collect([], [ptx])[1]

    def test_all_there(self):
        self.assertEqual(self.wrong(ELEMENTWISE_PTX + TILE_PTX + SMALL_PTX), [])
        self.assertEqual(c.parse_ptx(TILE_PTX)[TILE]["threads"], 128)

    def test_missing_vector_load(self):
        for narrow in ("ld.global.f32", "ld.global.v2.f32", "ld.shared.v4.f32", "ld.param.v4.f32"):
            self.assertEqual(self.wrong(ELEMENTWISE_PTX.replace("ld.global.nc.v4.f32", narrow)),
                             ["elementwise<quantize, f32, s8>: no load of 128 bits in its PTX"], narrow)

    def test_missing_vector_store(self):
        self.assertEqual(self.wrong(ELEMENTWISE_PTX.replace("st.global.v2.b64", "st.global.v2.b32")),
                         ["elementwise<quantize, f32, s8>: no store of 128 bits in its PTX"])

    def test_codes_that_are_narrower_by_design(self):
        body = "\tld.global.v2.f64 {a, b}, [c];\n\tst.global.b64 [c], a;\n"
        self.assertEqual(c.missing_instructions("elementwise<Quantize<f64, s8>>", body), [])
        self.assertEqual(c.missing_instructions("elementwise<Quantize<f32, s8>>", body), ["store of 128 bits"])
        for pair in ("f16, u4", "bf16, s4", "f32, u4", "f64, s8"):
            self.assertEqual(c.missing_instructions(f"dynamic_columns<{pair}>", body), [], pair)
        self.assertEqual(c.missing_instructions("dynamic_columns<f16, s8>", body), ["store of 128 bits"])
        self.assertEqual(c.missing_instructions("dynamic_runs<f16, u4>", body), ["store of 128 bits"])

    def test_missing_mma(self):
        # The same shape for u8 is another instruction.
        for other in ("m16n8k32.row.col.s32.u8.u8", "m16n8k16.row.col.s32.s8.s8"):
            ptx = TILE_PTX.replace("m16n8k32.row.col.s32.s8.s8", other)
            self.assertEqual(self.wrong(ptx), ["linear_tile<128, f16>: no mma.sync m16n8k32 of s8 in its PTX"])

    def test_missing_copies(self):
        self.assertEqual(self.wrong(TILE_PTX.replace("cp.async.cg", "ld.cg").replace("ldmatrix", "ld")),
                         ["linear_tile<128, f16>: no cp.async in its PTX",
                          "linear_tile<128, f16>: no ldmatrix in its PTX"])

    def test_missing_dp4a(self):
        self.assertEqual(self.wrong(SMALL_PTX.replace("dp4a", "mad")), ["linear_small<f64>: no dp4a in its PTX"])

    def test_an_instruction_of_another_entry_does_not_count(self):
        ptx = ELEMENTWISE_PTX.replace("ld.global.nc.v4.f32", "ld.global.f32") + SMALL_PTX
        self.assertEqual(self.wrong(ptx), ["elementwise<quantize, f32, s8>: no load of 128 bits in its PTX"])

    def test_widths(self):
        for text, expected in (("ld.global.v4.u32", ("ld", 128)), ("ld.global.nc.L1::no_allocate.v2.u64", ("ld", 128)),
                               ("st.global.b128", ("st", 128)), ("ld.global.v8.b32", ("ld", 256)),
                               ("st.global.v4.u8", ("st", 32)), ("ld.shared.v4.u32", None), ("ld.v4.u32", None)):
            self.assertEqual(c.vector_bits(text), expected, text)

    def test_vector_loop(self):
        body = """
	mov.u32 	%r1, %tid.x;
$L__BB0_1:
	ld.global.v4.u32 	{%r2, %r3, %r4, %r5}, [%rd1];
	ld.global.v4.u32 	{%r6, %r7, %r8, %r9}, [%rd1+16];
	div.rn.f32 	%f1, %f2, %f3;
	st.global.v4.u32 	[%rd2], {%r2, %r3, %r4, %r5};
	@%p1 bra 	$L__BB0_1;
$L__BB0_2:
	ld.global.u8 	%rs1, [%rd3];
	@%p2 bra 	$L__BB0_2;
	ret;
"""
        def most(text):
            return c.vector_loop(c.vector_loops(text))

        self.assertEqual(most(body),
                         {"instructions": 14, "dp4a": 0, "load_bytes": 32, "store_bytes": 16, "loop": True})
        self.assertIsNone(most(body.replace(".v4.u32", ".u32")))
        # A slow path beside the division does not count, nor does one around the vectors.
        slow = body.replace("div.rn.f32 ", "@%p3 bra $L__BB0_5;\n\tadd.f32 a;\n\tadd.f32 b;\n$L__BB0_5:\n\tdiv.rn.f32 ")
        self.assertEqual(most(slow)["instructions"], 15)
        around = body.replace("\tld.global.v4.u32 \t{%r2", "\t@%p4 bra $L__BB0_6;\n\tld.global.v4.u32 \t{%r2")
        around = around.replace("\t@%p1 bra", "$L__BB0_6:\n\t@%p1 bra")
        self.assertEqual(most(around)["instructions"], 15)
        straight = most(body.replace("@%p1 bra", "@%p1 bra.nowhere").replace("$L__BB0_1;", "$L__BB0_2;"))
        self.assertEqual((straight["load_bytes"], straight["loop"]), (32, False))

    def test_optional_loads_are_ways_of_their_own(self):
        body = """
$L__BB0_1:
	ld.global.v4.u32 	{%r2, %r3, %r4, %r5}, [%rd1];
	min.f32 	%f1, %f2, %f3;
	@%p1 bra 	$L__BB0_1;
$L__BB0_2:
	ld.global.v4.u32 	{%r2, %r3, %r4, %r5}, [%rd1];
	@%p2 bra 	$L__BB0_3;
	ld.global.v4.f32 	{%f2, %f3, %f4, %f5}, [%rd3];
	div.rn.f32 	%f1, %f2, %f3;
$L__BB0_3:
	dp4a.s32.s32 	%r34, %r43, %r44, %r37;
	st.global.v4.u32 	[%rd2], {%r2, %r3, %r4, %r5};
	@%p3 bra 	$L__BB0_2;
	ret;
"""
        self.assertEqual(c.vector_loops(body), [
            {"stores": False, "loop": True,
             "ways": [{"instructions": 3, "dp4a": 0, "load_bytes": 16, "store_bytes": 0}]},
            {"stores": True, "loop": True,
             "ways": [{"instructions": 5, "dp4a": 1, "load_bytes": 16, "store_bytes": 16},
                      {"instructions": 16, "dp4a": 1, "load_bytes": 32, "store_bytes": 16}]}])

    def test_a_family_that_vanished(self):
        families = [("elementwise.cu", "elementwise"), ("linear.cu", "linear_tile")]
        _, wrong = c.collect([LOG], [ELEMENTWISE_PTX], families)
        self.assertEqual(wrong, ["linear.cu has no kernel linear_tile"])


class Flags(unittest.TestCase):
    def test_they_are_those_of_the_build(self):
        text = re.sub(r"#.*", "", (c.ROOT / "src/cuda/CMakeLists.txt").read_text())
        found = set(re.findall(r"--(?:fmad|ftz|prec-div|prec-sqrt|use_fast_math)\b(?:=\w+)?", text))
        self.assertEqual(found, set(c.ARITHMETIC_FLAGS))


class Names(unittest.TestCase):
    def test_shorten(self):
        enums = {"Op": ["quantize", "dequantize"]}
        for long, short in (
                ("void kvant::cuda::elementwise_kernel<(kvant::cuda::Op)1, kvant::BFloat16, kvant::Int4, false>(void*)",
                 "elementwise<dequantize, bf16, s4, false>"),
                ("void kvant::cuda::(anonymous namespace)::linear_tile<128, unsigned char>(kvant::cuda::Args)",
                 "linear_tile<128, u8>"),
                ("void kvant::cuda::small_kernel<kvant::cuda::Shape<4, kvant::Wide<8> >, kvant::UInt4>(int)",
                 "small<Shape<4, Wide<8>>, u4>"),
                ("void kvant::cuda::elementwise_kernel<(kvant::cuda::(anonymous namespace)::Op)0, float>(int)",
                 "elementwise<quantize, f32>"),
                ("finish_ranges_kernel(int)", "finish_ranges")):
            self.assertEqual(c.shorten(long, enums), short)

    def test_enumerators_come_from_the_headers(self):
        self.assertEqual(c.enumerators()["QuantizeKind"][:2], ["quantize", "dequantize"])


class Documents(unittest.TestCase):
    def test_written_then_equal_then_different(self):
        rows, _ = c.collect([LOG], [ELEMENTWISE_PTX])
        with tempfile.TemporaryDirectory() as folder:
            docs = pathlib.Path(folder)
            (docs / "cuda.md").write_text("before\n<!-- ptxas -->\n<!-- /ptxas -->\nafter\n")
            figures = {"nvcc": "13.0.88", "kernels": rows}
            c.documents(figures, docs, check=False)
            text = (docs / "cuda.md").read_text()
            self.assertIn("| elementwise | 1 | 256 | 0–2048 | 32 | 40 |", text)
            self.assertTrue(text.startswith("before\n") and text.endswith("\nafter\n"))
            every = (docs / "cuda_kernels.md").read_text()
            self.assertIn("| `elementwise<quantize, f32, s8>` | 256 | 32 | 40 |", every)
            self.assertEqual(c.documents(figures, docs, check=True), [])
            rows[0]["registers"] = 33
            self.assertEqual(c.documents(figures, docs, check=True), ["cuda.md", "cuda_kernels.md"])
            # Another compiler allocates other registers: nothing to compare.
            self.assertEqual(c.documents({"nvcc": "14.0", "kernels": rows}, docs, check=True), [])


if __name__ == "__main__":
    unittest.main()
