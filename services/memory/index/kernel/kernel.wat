;; Comparing vectors, eight bits a component and sixteen components at a time. Compiled into kernel.wasm by `npm run kernel`;
;; kernel.ts says what each function is for, and a test holds it against plain arithmetic.
;;
;; A vector takes `width` bytes, a multiple of 128; what the model does not fill is zero. Its code takes width / 8 bytes. The
;; codes of sixteen vectors lie interleaved: first the first byte of each, then the second of each.
(module
  (import "index" "memory" (memory 1))

  ;; One bit for each component: whether it is above the mean.
  (func (export "encode")
    (param $dense i32) (param $width i32) (param $from i32) (param $until i32) (param $mean i32) (param $codes i32)
    (local $at i32) (local $vector i32) (local $code i32) (local $bits i32)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $from) (local.get $until)))
        (local.set $vector (i32.add (local.get $dense) (i32.mul (local.get $from) (local.get $width))))
        ;; Its sixteen begin at (from & ~15) * width / 8, and it is the (from & 15)th of them.
        (local.set $code (i32.add (i32.add (local.get $codes) (i32.and (local.get $from) (i32.const 15)))
          (i32.mul (i32.shr_u (local.get $from) (i32.const 4)) (i32.shl (local.get $width) (i32.const 1)))))
        (local.set $at (i32.const 0))
        (loop $part
          (local.set $bits (i8x16.bitmask (i8x16.gt_s
            (v128.load (i32.add (local.get $vector) (local.get $at)))
            (v128.load (i32.add (local.get $mean) (local.get $at))))))
          (i32.store8 (local.get $code) (local.get $bits))
          (i32.store8 offset=16 (local.get $code) (i32.shr_u (local.get $bits) (i32.const 8)))
          (local.set $code (i32.add (local.get $code) (i32.const 32)))
          (local.set $at (i32.add (local.get $at) (i32.const 16)))
          (br_if $part (i32.lt_u (local.get $at) (local.get $width))))
        (local.set $from (i32.add (local.get $from) (i32.const 1)))
        (br $next))))

  ;; What each code scores, as 16 bits each, sixteen codes at a time: the sum of what `tables` says of its half bytes. There
  ;; is a table of sixteen bytes for each half byte, the lower one first.
  (func (export "scores") (param $codes i32) (param $width i32) (param $count i32) (param $tables i32) (param $out i32)
    (local $end i32) (local $table i32) (local $last i32) (local $bytes v128) (local $more v128) (local $lower v128)
    (local $low v128) (local $high v128)
    (local.set $end (i32.add (local.get $out) (i32.shl (local.get $count) (i32.const 1))))
    (local.set $lower (i8x16.splat (i32.const 15)))
    (local.set $last (i32.add (local.get $tables) (i32.shl (local.get $width) (i32.const 5))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $out) (local.get $end)))
        (local.set $low (v128.const i64x2 0 0))
        (local.set $high (v128.const i64x2 0 0))
        (local.set $table (local.get $tables))
        (loop $part
          ;; Two bytes of each code at a time: their four entries are added in eight bits before they are widened.
          (local.set $bytes (v128.load (local.get $codes)))
          (local.set $more (v128.load offset=16 (local.get $codes)))
          (local.set $bytes (i8x16.add
            (i8x16.add
              (i8x16.swizzle (v128.load (local.get $table)) (v128.and (local.get $bytes) (local.get $lower)))
              (i8x16.swizzle (v128.load offset=16 (local.get $table)) (i8x16.shr_u (local.get $bytes) (i32.const 4))))
            (i8x16.add
              (i8x16.swizzle (v128.load offset=32 (local.get $table)) (v128.and (local.get $more) (local.get $lower)))
              (i8x16.swizzle (v128.load offset=48 (local.get $table)) (i8x16.shr_u (local.get $more) (i32.const 4))))))
          (local.set $low (i16x8.add (local.get $low) (i16x8.extend_low_i8x16_u (local.get $bytes))))
          (local.set $high (i16x8.add (local.get $high) (i16x8.extend_high_i8x16_u (local.get $bytes))))
          (local.set $codes (i32.add (local.get $codes) (i32.const 32)))
          (local.set $table (i32.add (local.get $table) (i32.const 64)))
          (br_if $part (i32.lt_u (local.get $table) (local.get $last))))
        (v128.store (local.get $out) (local.get $low))
        (v128.store offset=16 (local.get $out) (local.get $high))
        (local.set $out (i32.add (local.get $out) (i32.const 32)))
        (br $next))))

  ;; Adds up, as 32 bits each, how many scores there are of each sixteen.
  (func (export "count") (param $scores i32) (param $count i32) (param $counts i32)
    (local $end i32) (local $cell i32)
    (local.set $end (i32.add (local.get $scores) (i32.shl (local.get $count) (i32.const 1))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $scores) (local.get $end)))
        (local.set $cell (i32.add (local.get $counts)
          (i32.shl (i32.shr_u (i32.load16_u (local.get $scores)) (i32.const 4)) (i32.const 2))))
        (i32.store (local.get $cell) (i32.add (i32.load (local.get $cell)) (i32.const 1)))
        (local.set $scores (i32.add (local.get $scores) (i32.const 2)))
        (br $next))))

  ;; The places of the scores that are at least so much, as 32 bits each; answers how many there are.
  (func (export "atLeast") (param $scores i32) (param $count i32) (param $least i32) (param $out i32) (result i32)
    (local $place i32) (local $hits i32) (local $end i32)
    (local.set $end (local.get $out))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $place) (local.get $count)))
        ;; Eight at once, because most have none.
        (local.set $hits (i16x8.bitmask (i16x8.ge_u
          (v128.load (i32.add (local.get $scores) (i32.shl (local.get $place) (i32.const 1))))
          (i16x8.splat (local.get $least)))))
        (block $none
          (loop $hit
            (br_if $none (i32.eqz (local.get $hits)))
            (i32.store (local.get $end) (i32.add (local.get $place) (i32.ctz (local.get $hits))))
            (local.set $end (i32.add (local.get $end) (i32.shl (i32.lt_u (i32.load (local.get $end)) (local.get $count))
              (i32.const 2))))
            (local.set $hits (i32.and (local.get $hits) (i32.sub (local.get $hits) (i32.const 1))))
            (br $hit)))
        (local.set $place (i32.add (local.get $place) (i32.const 8)))
        (br $next)))
    (i32.shr_u (i32.sub (local.get $end) (local.get $out)) (i32.const 2)))

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
