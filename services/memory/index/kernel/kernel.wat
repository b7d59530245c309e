;; Comparing vectors, eight bits a component and sixteen components at a time. Compiled into kernel.wasm by `npm run kernel`;
;; kernel.ts says what each function is for, and a test holds it against plain arithmetic.
;;
;; A vector takes `width` bytes, a multiple of 128; what the model does not fill is zero. Its code takes width / 8 bytes.
(module
  (import "index" "memory" (memory 1))

  ;; One bit for each component: whether it is above the mean.
  (func (export "encode") (param $dense i32) (param $width i32) (param $count i32) (param $mean i32) (param $codes i32)
    (local $end i32) (local $at i32)
    (local.set $end (i32.add (local.get $dense) (i32.mul (local.get $width) (local.get $count))))
    (block $done
      (loop $vector
        (br_if $done (i32.ge_u (local.get $dense) (local.get $end)))
        (local.set $at (i32.const 0))
        (loop $part
          (i32.store16 (local.get $codes)
            (i8x16.bitmask (i8x16.gt_s
              (v128.load (i32.add (local.get $dense) (local.get $at)))
              (v128.load (i32.add (local.get $mean) (local.get $at))))))
          (local.set $codes (i32.add (local.get $codes) (i32.const 2)))
          (local.set $at (i32.add (local.get $at) (i32.const 16)))
          (br_if $part (i32.lt_u (local.get $at) (local.get $width))))
        (local.set $dense (i32.add (local.get $dense) (local.get $width)))
        (br $vector))))

  ;; In how many bits each code differs from the query's, as 16 bits each, and how many codes differ in so many.
  (func (export "differences")
    (param $codes i32) (param $width i32) (param $count i32) (param $query i32) (param $out i32) (param $counts i32)
    (local $end i32) (local $at i32) (local $sum v128) (local $bits i32) (local $cell i32)
    (local.set $end (i32.add (local.get $out) (i32.shl (local.get $count) (i32.const 1))))
    (block $done
      (loop $code
        (br_if $done (i32.ge_u (local.get $out) (local.get $end)))
        (local.set $sum (v128.const i64x2 0 0))
        (local.set $at (i32.const 0))
        (loop $part
          (local.set $sum (i16x8.add (local.get $sum) (i16x8.extadd_pairwise_i8x16_u (i8x16.popcnt (v128.xor
            (v128.load (local.get $codes))
            (v128.load (i32.add (local.get $query) (local.get $at))))))))
          (local.set $codes (i32.add (local.get $codes) (i32.const 16)))
          (local.set $at (i32.add (local.get $at) (i32.const 16)))
          (br_if $part (i32.lt_u (local.get $at) (local.get $width))))
        (local.set $sum (i32x4.extadd_pairwise_i16x8_u (local.get $sum)))
        (local.set $sum (i64x2.add (local.get $sum)
          (i8x16.shuffle 8 9 10 11 12 13 14 15 8 9 10 11 12 13 14 15 (local.get $sum) (local.get $sum))))
        (local.set $bits (i32.add
          (i32x4.extract_lane 0 (local.get $sum)) (i32x4.extract_lane 1 (local.get $sum))))
        (i32.store16 (local.get $out) (local.get $bits))
        (local.set $cell (i32.add (local.get $counts) (i32.shl (local.get $bits) (i32.const 2))))
        (i32.store (local.get $cell) (i32.add (i32.load (local.get $cell)) (i32.const 1)))
        (local.set $out (i32.add (local.get $out) (i32.const 2)))
        (br $code))))

  ;; The places of those that differ in no more than `most` bits, as 32 bits each; answers how many there are.
  (func (export "within") (param $differences i32) (param $count i32) (param $most i32) (param $out i32) (result i32)
    (local $place i32) (local $found i32)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $place) (local.get $count)))
        ;; Written in any case and kept by moving on, because a branch here is guessed wrong too often.
        (i32.store (i32.add (local.get $out) (i32.shl (local.get $found) (i32.const 2))) (local.get $place))
        (local.set $found (i32.add (local.get $found) (i32.le_u
          (i32.load16_u (i32.add (local.get $differences) (i32.shl (local.get $place) (i32.const 1))))
          (local.get $most))))
        (local.set $place (i32.add (local.get $place) (i32.const 1)))
        (br $next)))
    (local.get $found))

  ;; The inner product of the query with the vector at each of `count` places, as 32 bits each.
  (func (export "products")
    (param $dense i32) (param $width i32) (param $places i32) (param $count i32) (param $query i32) (param $out i32)
    (local $end i32) (local $vector i32) (local $at i32) (local $sum v128) (local $a v128) (local $b v128)
    (local.set $end (i32.add (local.get $places) (i32.shl (local.get $count) (i32.const 2))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $places) (local.get $end)))
        (local.set $vector (i32.add (local.get $dense) (i32.mul (i32.load (local.get $places)) (local.get $width))))
        (local.set $sum (v128.const i64x2 0 0))
        (local.set $at (i32.const 0))
        (loop $part
          (local.set $a (v128.load (i32.add (local.get $vector) (local.get $at))))
          (local.set $b (v128.load (i32.add (local.get $query) (local.get $at))))
          (local.set $sum (i32x4.add (local.get $sum) (i32x4.add
            (i32x4.extadd_pairwise_i16x8_s (i16x8.extmul_low_i8x16_s (local.get $a) (local.get $b)))
            (i32x4.extadd_pairwise_i16x8_s (i16x8.extmul_high_i8x16_s (local.get $a) (local.get $b))))))
          (local.set $at (i32.add (local.get $at) (i32.const 16)))
          (br_if $part (i32.lt_u (local.get $at) (local.get $width))))
        (local.set $sum (i32x4.add (local.get $sum)
          (i8x16.shuffle 8 9 10 11 12 13 14 15 8 9 10 11 12 13 14 15 (local.get $sum) (local.get $sum))))
        (i32.store (local.get $out) (i32.add
          (i32x4.extract_lane 0 (local.get $sum)) (i32x4.extract_lane 1 (local.get $sum))))
        (local.set $places (i32.add (local.get $places) (i32.const 4)))
        (local.set $out (i32.add (local.get $out) (i32.const 4)))
        (br $next)))))
