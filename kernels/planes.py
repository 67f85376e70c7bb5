"""Real or complex numbers as one or two real arrays, real part first, because Pallas kernels have no complex dtype."""

import jax.numpy as jnp
from jax import Array

Planes = tuple[Array, ...]
ONE = (1.0, 0.0)  # the number 1, plane by plane


def times(a: Planes, b: Planes) -> Planes:
    """Returns the product of two real or of two complex numbers."""
    if len(a) == 1:
        return (a[0] * b[0],)
    (a_re, a_im), (b_re, b_im) = a, b
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


def plus(a: Planes, b: Planes) -> Planes:
    """Returns the sum."""
    return tuple(one + other for one, other in zip(a, b, strict=True))


def scaled(scale: Array, z: Planes) -> Planes:
    """Returns the product with a real number."""
    return tuple(scale * plane for plane in z)


def conjugate(z: Planes) -> Planes:
    """Returns the conjugate; a real number is its own."""
    re, *im = z
    return (re, *(-plane for plane in im))


def inner(a: Planes, b: Planes) -> Array:
    """Returns Re(conj(a) b), the inner product of a and b as real vectors."""
    first, *rest = (one * other for one, other in zip(a, b, strict=True))
    return sum(rest, start=first)


def float32(z: Planes) -> Planes:
    """Returns the same numbers in float32."""
    return tuple(plane.astype(jnp.float32) for plane in z)
